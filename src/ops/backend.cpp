#include <fmt/format.h>

#include "ops/ops.h"

namespace zipage {

#ifdef ZIPAGE_CUDA
std::unique_ptr<Backend> make_cuda_backend();
#endif

std::unique_ptr<Backend> make_backend(std::string_view device, const CpuOptions& cpu) {
  if (device == "cpu") return make_cpu_backend(cpu);
#ifdef ZIPAGE_CUDA
  if (device == "cuda") return make_cuda_backend();
  if (device == "auto") {
    try {
      return make_cuda_backend();
    } catch (const DeviceError&) {
      return make_cpu_backend(cpu);
    }
  }
#else
  if (device == "cuda") throw DeviceError("This build has no CUDA backend; use --device cpu.");
  if (device == "auto") return make_cpu_backend(cpu);
#endif
  throw DeviceError(fmt::format("Unknown device \"{}\": use auto, cpu or cuda.", device));
}

}  // namespace zipage
