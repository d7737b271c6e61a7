// Random numbers for op tests, the same everywhere.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace zipage::test {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  int between(int low, int high) {
    return static_cast<int>(low + static_cast<int64_t>(engine_() % (static_cast<uint64_t>(high - low) + 1)));
  }
  float uniform() { return static_cast<float>(engine_() >> 40) * 0x1p-24F; }
  // Roughly normal, mean 0, deviation 1.
  float normal() {
    float sum = 0;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum - 6.0F;
  }
  std::vector<float> normals(int64_t count, float scale = 1.0F) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal() * scale;
    return values;
  }
  template <typename T>
  void shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[engine_() % i]);
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace zipage::test
