// A library that a program loads by itself, to write down when each kernel ran, those of CUDA graphs too:
//
//   CUDA_INJECTION64_PATH=.../libkernel_trace.so KERNEL_TRACE=trace.txt build/cuda/bench/bench_kernels_cuda "step 64"
//
// A line a kernel or copy: begin and end in nanoseconds, blocks, name. bench/trace/timeline.py reads it. A step of many
// kernels takes 1 to 5 % longer under it.
#include <cupti.h>
#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>

namespace {

constexpr size_t kBufferBytes = size_t{64} << 20;
std::FILE* out = nullptr;

void CUPTIAPI hand_out_buffer(uint8_t** buffer, size_t* bytes, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *bytes = kBufferBytes;
  *max_records = 0;  // as many as fit
}

void CUPTIAPI write_down(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel9*>(record);
      const long long blocks = 1LL * kernel->gridX * kernel->gridY * kernel->gridZ;
      int status = 0;
      char* plain = abi::__cxa_demangle(kernel->name, nullptr, nullptr, &status);
      std::fprintf(out, "%llu %llu %lld %s\n", static_cast<unsigned long long>(kernel->start),
                   static_cast<unsigned long long>(kernel->end), blocks, plain != nullptr ? plain : kernel->name);
      std::free(plain);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy5*>(record);
      std::fprintf(out, "%llu %llu 0 copy\n", static_cast<unsigned long long>(copy->start),
                   static_cast<unsigned long long>(copy->end));
    }
  }
  std::free(buffer);
}

void finish() {
  cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  std::fclose(out);
}

}  // namespace

// Called by the CUDA driver when the program first uses it.
extern "C" int InitializeInjection() {
  const char* path = std::getenv("KERNEL_TRACE");
  if (path == nullptr) path = "kernel_trace.txt";
  out = std::fopen(path, "w");
  if (out == nullptr) {
    std::fprintf(stderr, "kernel_trace: %s cannot be written.\n", path);
    return 0;
  }
  std::atexit(finish);
  for (const CUptiResult result :
       {cuptiActivityRegisterCallbacks(hand_out_buffer, write_down),
        cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY)}) {
    const char* reason = "";
    if (result == CUPTI_SUCCESS) continue;
    cuptiGetResultString(result, &reason);
    std::fprintf(stderr, "kernel_trace: nothing can be recorded (%s).\n", reason);
    return 0;
  }
  return 1;
}
