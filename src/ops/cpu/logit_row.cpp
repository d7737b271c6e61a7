#include "ops/cpu/logit_row.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace zipage::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

size_t aligned(size_t floats) {
  return (floats + 15) / 16 * 16;
}

// The least of the largest values of [begin, end) whose weights exp(x - top) sum up to `wanted`. Reorders.
float least_that_reaches(const Kernels& kernel, float* begin, float* end, float top, double wanted) {
  // Everything before `begin` is in; its weight is taken off `wanted`.
  while (end - begin > 1) {
    float* middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, std::greater<float>());
    const double upper = kernel.exp_sum(begin, top, middle - begin);
    if (upper >= wanted) {
      end = middle;
    } else {
      wanted -= upper;
      begin = middle;
    }
  }
  return *begin;
}

}  // namespace

size_t LogitRow::workspace_bytes(int vocab) {
  const auto size = static_cast<size_t>(vocab);
  return (2 * aligned(size) + aligned(size / kLogitBlock + 1)) * sizeof(float);
}

LogitRow::LogitRow(const Kernels& kernel, int vocab, std::byte* workspace)
    : kernel_(kernel),
      size_(vocab),
      values_(reinterpret_cast<float*>(workspace)),
      work_(values_ + aligned(static_cast<size_t>(vocab))),
      maxima_(work_ + aligned(static_cast<size_t>(vocab))) {}

void LogitRow::load(const float* logits) {
  kernel_.finite_copy(logits, size_, values_);
}

void LogitRow::index() {
  kernel_.block_maxima(values_, size_, maxima_);
  largest_ = *std::max_element(maxima_, maxima_ + num_blocks());
}

int LogitRow::first_largest() const {
  if (largest_ == kMinusInfinity) return -1;
  const auto block = std::find(maxima_, maxima_ + num_blocks(), largest_) - maxima_;
  return static_cast<int>(std::find(values_ + block * kLogitBlock, values_ + size_, largest_) - values_);
}

void LogitRow::normalise(float factor) {
  // The same arithmetic on a maximum as on the value that it came from keeps them equal.
  kernel_.shift_scale(values_, size_, largest_, factor);
  kernel_.shift_scale(maxima_, num_blocks(), largest_, factor);
  largest_ = 0;
}

int LogitRow::collect(float least) {
  int count = 0;
  for (int block = 0; block < num_blocks(); ++block) {
    if (!(maxima_[block] >= least)) continue;
    const int end = std::min<int>(size_, (block + 1) * static_cast<int>(kLogitBlock));
    for (int i = block * static_cast<int>(kLogitBlock); i < end; ++i) {
      work_[count] = values_[i];
      count += values_[i] >= least ? 1 : 0;
    }
  }
  return count;
}

float LogitRow::kth_largest(int k) {
  // k blocks have a maximum of at least the k-th largest maximum, so as many values have, and the k-th largest is no
  // less.
  float floor = kMinusInfinity;
  if (k <= num_blocks()) {
    std::copy_n(maxima_, num_blocks(), work_);
    std::nth_element(work_, work_ + k - 1, work_ + num_blocks(), std::greater<float>());
    floor = work_[k - 1];
  }
  const int count = collect(floor);
  std::nth_element(work_, work_ + k - 1, work_ + count, std::greater<float>());
  return work_[k - 1];
}

float LogitRow::least_of_share(double share, float least) {
  double all = 0;
  if (least == kMinusInfinity) {
    all = kernel_.exp_sum(values_, largest_, size_);
  } else {
    all = kernel_.exp_sum(work_, largest_, collect(least));
  }
  // The boundary mostly lies among few values near the largest: look there first.
  for (float depth = 4.0F; depth < 80.0F; depth *= 2) {
    const int count = collect(std::max(least, largest_ - depth));
    if (kernel_.exp_sum(work_, largest_, count) >= share * all) {
      return least_that_reaches(kernel_, work_, work_ + count, largest_, share * all);
    }
  }
  const int count = collect(least == kMinusInfinity ? std::numeric_limits<float>::lowest() : least);
  return least_that_reaches(kernel_, work_, work_ + count, largest_, share * all);
}

int32_t* LogitRow::ids_from(float least, int& count) {
  auto* ids = reinterpret_cast<int32_t*>(work_);
  count = 0;
  for (int block = 0; block < num_blocks(); ++block) {
    if (!(maxima_[block] >= least)) continue;
    const int end = std::min<int>(size_, (block + 1) * static_cast<int>(kLogitBlock));
    for (int i = block * static_cast<int>(kLogitBlock); i < end; ++i) {
      if (values_[i] >= least) ids[count++] = i;
    }
  }
  return ids;
}

int32_t LogitRow::draw(SampleNoiseKey key, float least) const {
  int32_t best = -1;
  float value = kMinusInfinity;
  const auto draw_block = [&](int block) {
    if (!(maxima_[block] >= least) || maxima_[block] == kMinusInfinity || maxima_[block] + kSampleNoiseLargest < value)
      return;
    const int begin = block * static_cast<int>(kLogitBlock);
    const int end = std::min<int>(size_, begin + static_cast<int>(kLogitBlock));
    if (kernel_.noise_bound(values_ + begin, end - begin, static_cast<uint32_t>(begin), key) < value) return;
    for (int i = begin; i < end; ++i) {
      if (!(values_[i] >= least) || values_[i] == kMinusInfinity || values_[i] + kSampleNoiseLargest < value) continue;
      const float u = sample_noise_uniform(sample_noise_bits(key, static_cast<uint32_t>(i)));
      const float noisy = values_[i] - std::log(-std::log1p(-u));
      if (noisy > value || (noisy == value && i < best)) {
        value = noisy;
        best = i;
      }
    }
  };
  // The block of the likeliest token first: what comes near to winning there spares most others.
  const int first = first_largest();
  if (first < 0) return -1;
  draw_block(first / static_cast<int>(kLogitBlock));
  for (int block = 0; block < num_blocks(); ++block) draw_block(block);
  return best;
}

}  // namespace zipage::cpu
