#include "ops/read_bandwidth.h"

#include "ops/cpu/read_bandwidth.h"

namespace zipage {

double measure_read_bandwidth(std::string_view device, const CpuOptions& cpu) {
  constexpr int64_t kBytes = int64_t{512} << 20;
  constexpr int kTries = 5;
  if (device != "cpu" && (device != "auto" || make_backend(device, cpu)->info().name != "cpu")) return 0;
  cpu::ThreadPool pool(cpu.num_threads);
  return cpu::read_bytes_per_second(pool, kBytes, kTries);
}

}  // namespace zipage
