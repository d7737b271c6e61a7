// What this machine can do at best: the yardstick beside which kernels are reported.
#pragma once

namespace zipage::bench {

struct MachinePeak {
  double read_gb_per_s = 0;      // all threads together, from memory that the last-level cache holds
  double far_read_gb_per_s = 0;  // the same from memory that it does not hold
  double f32_gflops = 0;         // fused multiply-adds of all threads, two operations each
};

MachinePeak measure_peak(int num_threads);

}  // namespace zipage::bench
