#include "ops/read_bandwidth.h"

#include "ops/cpu/read_bandwidth.h"
#ifdef ZIPAGE_CUDA
#include "ops/cuda/read_bandwidth.h"
#endif

namespace zipage {

double measure_read_bandwidth(std::string_view device, const CpuOptions& cpu) {
  constexpr int64_t kBytes = int64_t{512} << 20;
  constexpr int kTries = 5;
#ifdef ZIPAGE_CUDA
  try {
    if (device != "cpu") {
      const std::unique_ptr<Backend> backend = make_backend(device, cpu);
      if (backend->info().name == "cuda") return cuda_read_bytes_per_second(*backend);
    }
  } catch (const DeviceError&) {
    return 0;  // whoever starts an engine on it hears why
  }
#endif
  if (device != "cpu" && device != "auto") return 0;
  cpu::ThreadPool pool(cpu.num_threads);
  return cpu::read_bytes_per_second(pool, kBytes, kTries);
}

}  // namespace zipage
