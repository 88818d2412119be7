// What a step asks of the host's memory, each in one pass: Adam's update, and the sums of squares behind a norm.
// Compiled by native.py on the machine that runs it; called by one_pass.py and norms.py.
//
// Arithmetic rounds as it is written: the compiler contracts nothing, a fused multiply-add stands where fused() stands.
// No sum depends on the number of threads.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace {

constexpr int64_t BLOCK = 1024;     // elements that are worked on in the first-level cache
constexpr int64_t PIECE = 1 << 16;  // elements that a thread takes at a time

enum Format : int32_t { NONE = 0, FP32 = 1, BF16 = 2, FP16 = 3 };

// ---- number formats ------------------------------------------------------------------------------------------------

inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

void widen_bf16(const uint16_t* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = static_cast<uint32_t>(from[i]) << 16;
    std::memcpy(&to[i], &bits, 4);
  }
}

void round_bf16(const float* from, uint16_t* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, &from[i], 4);
    const uint32_t nearest = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;  // ties to even
    to[i] = static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0u : nearest);
  }
}

#if defined(__F16C__)
constexpr int32_t HAS_FP16 = 1;

void widen_fp16(const uint16_t* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  for (; i < count; ++i) to[i] = _cvtsh_ss(from[i]);
}

void round_fp16(const float* from, uint16_t* to, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  for (; i < count; ++i) to[i] = _cvtss_sh(from[i], _MM_FROUND_TO_NEAREST_INT);
}
#elif defined(__FLT16_MAX__)
constexpr int32_t HAS_FP16 = 1;

void widen_fp16(const uint16_t* from, float* to, int64_t count) {
  const _Float16* halves = reinterpret_cast<const _Float16*>(from);
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(halves[i]);
}

void round_fp16(const float* from, uint16_t* to, int64_t count) {
  _Float16* halves = reinterpret_cast<_Float16*>(to);
  for (int64_t i = 0; i < count; ++i) halves[i] = static_cast<_Float16>(from[i]);
}
#else
constexpr int32_t HAS_FP16 = 0;

void widen_fp16(const uint16_t*, float*, int64_t) {}
void round_fp16(const float*, uint16_t*, int64_t) {}
#endif

void widen(Format format, const void* data, int64_t from, int64_t count, float* to) {
  if (format == BF16)
    widen_bf16(static_cast<const uint16_t*>(data) + from, to, count);
  else if (format == FP16)
    widen_fp16(static_cast<const uint16_t*>(data) + from, to, count);
  else
    std::memcpy(to, static_cast<const float*>(data) + from, count * sizeof(float));
}

void round_to(Format format, const float* values, void* data, int64_t from, int64_t count) {
  if (format == BF16)
    round_bf16(values, static_cast<uint16_t*>(data) + from, count);
  else if (format == FP16)
    round_fp16(values, static_cast<uint16_t*>(data) + from, count);
}

// ---- threads -------------------------------------------------------------------------------------------------------

struct Progress {
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> done{0};
  std::mutex lock;
  std::condition_variable all;
};

// Calls work(number) for all numbers below `count`, on up to `threads` threads, which inherit this one's cores. It
// waits for the work, and not for threads: on a busy machine one may begin when nothing is left to do, and ends then.
template <class Work>
void divide(int64_t count, int64_t threads, const Work& work) {
  const auto progress = std::make_shared<Progress>();
  const auto run = [progress, count, each = &work] {
    int64_t did = 0;
    for (int64_t number; (number = progress->next.fetch_add(1)) < count; ++did) (*each)(number);
    if (did && progress->done.fetch_add(did) + did == count) {
      const std::lock_guard<std::mutex> hold(progress->lock);
      progress->all.notify_all();
    }
  };
  try {
    for (int64_t started = 1; started < std::min(threads, count); ++started) std::thread(run).detach();
  } catch (const std::exception&) {  // no more threads are to be had: those that there are do it
  }
  run();
  std::unique_lock<std::mutex> hold(progress->lock);
  progress->all.wait(hold, [&] { return progress->done.load() == count; });
}

// Rows of different lengths as pieces of at most PIECE elements, counted through.
class Pieces {
 public:
  template <class Row>
  Pieces(const Row* rows, int32_t count) : begins_(count + 1, 0) {
    for (int32_t row = 0; row < count; ++row) {
      begins_[row + 1] = begins_[row] + (rows[row].count + PIECE - 1) / PIECE;
      elements_ += rows[row].count;
    }
  }
  // So many threads are worth their start.
  int64_t threads(int32_t most) const { return std::min<int64_t>(most, 1 + elements_ / PIECE); }
  int64_t count() const { return begins_.back(); }
  int64_t begin(int32_t row) const { return begins_[row]; }
  int32_t row(int64_t piece) const {
    return static_cast<int32_t>(std::upper_bound(begins_.begin(), begins_.end(), piece) - begins_.begin()) - 1;
  }

 private:
  std::vector<int64_t> begins_;
  int64_t elements_ = 0;
};

// ---- Adam ----------------------------------------------------------------------------------------------------------

struct Parameter {
  float* weight;
  float* average;
  float* square;
  const void* gradient;
  void* rounded;  // takes the new weight in 16 bits
  int64_t count;
  int32_t gradient_format;
  int32_t rounded_format;
  float factor;       // the gradient is multiplied by it, in its own format
  float divisor;      // and then divided by this
  float sign;         // -1: maximize
  float decay;        // the weight is multiplied by it
  float penalty;      // so much of the weight is added to the gradient
  float average_new;  // 1 - beta1
  float square_kept;  // beta2
  float square_new;   // 1 - beta2
  float correction;   // root of 1 - beta2 ** step
  float epsilon;
  float step;  // -lr / (1 - beta1 ** step)
};

// How the library that we must agree with was compiled: which products it has fused with the sum behind them.
struct Rounding {
  int32_t square;       // 0: none; 1: the old square; 2: the new one
  int32_t tail_square;  // the same of what is left behind the last whole vector
  int32_t lanes;        // of a vector
  int32_t weight;       // the weight times its penalty, or times its decay
};

void read_gradient(const Parameter& one, int64_t from, int64_t count, float* gradient) {
  const Format format = static_cast<Format>(one.gradient_format);
  widen(format, one.gradient, from, count, gradient);
  if (one.factor != 1.0f) {
    for (int64_t i = 0; i < count; ++i) gradient[i] *= one.factor;
    if (format != FP32) {
      uint16_t narrow[BLOCK];
      round_to(format, gradient, narrow, 0, count);
      widen(format, narrow, 0, count, gradient);
    }
  }
  if (one.divisor != 1.0f)
    for (int64_t i = 0; i < count; ++i) gradient[i] /= one.divisor;
  if (one.sign < 0)
    for (int64_t i = 0; i < count; ++i) gradient[i] = -gradient[i];
}

template <int32_t SQUARE, bool WEIGHT, bool PENALTY>
void advance(const Parameter& one, int64_t from, int64_t count, const float* __restrict__ gradient) {
  float* __restrict__ weight = one.weight + from;
  float* __restrict__ average = one.average + from;
  float* __restrict__ square = one.square + from;
  const float decay = one.decay, penalty = one.penalty, average_new = one.average_new, square_kept = one.square_kept,
              square_new = one.square_new, correction = one.correction, epsilon = one.epsilon, step = one.step;
  for (int64_t i = 0; i < count; ++i) {
    const float old = weight[i];
    float g = gradient[i];
    if (PENALTY) g = WEIGHT ? fused(old, penalty, g) : g + old * penalty;
    const float m = fused(average_new, g - average[i], average[i]);
    const float scaled = square_new * g;
    const float v = SQUARE == 1   ? fused(square[i], square_kept, scaled * g)
                    : SQUARE == 2 ? fused(scaled, g, square[i] * square_kept)
                                  : square[i] * square_kept + scaled * g;
    const float change = step * m / (__builtin_sqrtf(v) / correction + epsilon);
    average[i] = m;
    square[i] = v;
    weight[i] = WEIGHT ? fused(old, decay, change) : old * decay + change;
  }
}

using Advance = void (*)(const Parameter&, int64_t, int64_t, const float*);

template <bool PENALTY>
Advance advance_as(int32_t square, int32_t weight) {
  static constexpr Advance ways[2][3] = {
      {advance<0, false, PENALTY>, advance<1, false, PENALTY>, advance<2, false, PENALTY>},
      {advance<0, true, PENALTY>, advance<1, true, PENALTY>, advance<2, true, PENALTY>}};
  return ways[weight][square];
}

void update_piece(const Parameter& one, int64_t begin, const Rounding& rounding) {
  const int64_t end = std::min(begin + PIECE, one.count), tail = one.count - one.count % rounding.lanes;
  const auto way = one.penalty != 0 ? advance_as<true> : advance_as<false>;
  const Advance whole = way(rounding.square, rounding.weight), rest = way(rounding.tail_square, rounding.weight);
  alignas(64) float gradient[BLOCK];
  for (int64_t from = begin; from < end; from += BLOCK) {
    const int64_t count = std::min(BLOCK, end - from), vectors = std::clamp<int64_t>(tail - from, 0, count);
    read_gradient(one, from, count, gradient);
    whole(one, from, vectors, gradient);
    rest(one, from + vectors, count - vectors, gradient + vectors);
    if (one.rounded_format != NONE)
      round_to(static_cast<Format>(one.rounded_format), one.weight + from, one.rounded, from, count);
  }
}

// ---- sums of squares -----------------------------------------------------------------------------------------------

typedef float Lanes __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef double Sums __attribute__((vector_size(128)));

struct Row {
  const void* data;
  int64_t count;
  int32_t format;
};

// Adds at most BLOCK numbers: in fp32 a few to each lane, then in fp64. What is left behind the last lanes is returned.
double add_squares(const float* values, int64_t count, Sums& sums) {
  Lanes low = {}, high = {};
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    Lanes first, second;
    std::memcpy(&first, values + i, sizeof first);
    std::memcpy(&second, values + i + 16, sizeof second);
    low += first * first;
    high += second * second;
  }
  sums += __builtin_convertvector(low, Sums) + __builtin_convertvector(high, Sums);
  double rest = 0;
  for (; i < count; ++i) rest += static_cast<double>(values[i]) * values[i];
  return rest;
}

// The same of bf16, whose pairs are taken apart where they lie.
double add_squares_of_bf16(const uint16_t* values, int64_t count, Sums& sums) {
  Lanes low = {}, high = {};
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    Words pairs;
    std::memcpy(&pairs, values + i, sizeof pairs);
    const Lanes first = (Lanes)(pairs << 16), second = (Lanes)(pairs & 0xFFFF0000u);
    low += first * first;
    high += second * second;
  }
  sums += __builtin_convertvector(low, Sums) + __builtin_convertvector(high, Sums);
  float last[32];
  widen_bf16(values + i, last, count - i);
  double rest = 0;
  for (int64_t at = 0; at < count - i; ++at) rest += static_cast<double>(last[at]) * last[at];
  return rest;
}

double squares_of_piece(const Row& row, int64_t begin) {
  const int64_t end = std::min(begin + PIECE, row.count);
  const Format format = static_cast<Format>(row.format);
  alignas(64) float values[BLOCK];
  Sums sums = {};
  double sum = 0;
  for (int64_t from = begin; from < end; from += BLOCK) {
    const int64_t count = std::min(BLOCK, end - from);
    if (format == BF16) {
      sum += add_squares_of_bf16(static_cast<const uint16_t*>(row.data) + from, count, sums);
    } else if (format == FP32) {
      sum += add_squares(static_cast<const float*>(row.data) + from, count, sums);
    } else {
      widen(format, row.data, from, count, values);
      sum += add_squares(values, count, sums);
    }
  }
  for (int lane = 0; lane < 16; ++lane) sum += sums[lane];
  return sum;
}

}  // namespace

// ---- what Python calls ---------------------------------------------------------------------------------------------

extern "C" {

int32_t tightship_has_fp16() { return HAS_FP16; }

// 0: done; 1: no memory, and nothing has been changed.
int32_t tightship_adam(const Parameter* parameters, int32_t count, const Rounding* rounding, int32_t threads) {
  try {
    const Pieces pieces(parameters, count);
    divide(pieces.count(), pieces.threads(threads), [&](int64_t piece) {
      const int32_t row = pieces.row(piece);
      update_piece(parameters[row], (piece - pieces.begin(row)) * PIECE, *rounding);
    });
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

// Into `sums`, one for each row. 0: done; 1: no memory.
int32_t tightship_squares(const Row* rows, int32_t count, double* sums, int32_t threads) {
  try {
    const Pieces pieces(rows, count);
    std::vector<double> found(pieces.count());
    divide(pieces.count(), pieces.threads(threads), [&](int64_t piece) {
      const int32_t row = pieces.row(piece);
      found[piece] = squares_of_piece(rows[row], (piece - pieces.begin(row)) * PIECE);
    });
    for (int32_t row = 0; row < count; ++row) {
      sums[row] = 0;
      for (int64_t piece = pieces.begin(row); piece < pieces.begin(row + 1); ++piece) sums[row] += found[piece];
    }
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

}  // extern "C"
