#include "ops/cuda/weight_staging.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <latch>
#include <thread>

#include "ops/cuda/launch.h"
#include "tensor/bf16.h"

namespace zipage::cuda {
namespace {

constexpr int64_t kPieceElements = int64_t{2} << 20;
constexpr int kMaxReaders = 8;
constexpr const char* kWhat = "the upload of weights";

int num_readers() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxReaders);
}

// Of a mapped file: its pages are read ahead while the first ones are used. Of other memory: nothing happens.
void read_ahead(std::span<const std::byte> data) {
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data.data()) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(data.data() + data.size());
  posix_madvise(reinterpret_cast<void*>(begin), end - begin, POSIX_MADV_WILLNEED);
}

}  // namespace

WeightStaging::WeightStaging(int device)
    : device_(device), readers_(static_cast<size_t>(num_readers())), threads_(num_readers() - 1) {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), kWhat);
  for (Reader& reader : readers_) {
    for (Slot& slot : reader.slots) {
      check(cudaHostAlloc(&slot.data, kPieceElements * sizeof(Bf16), cudaHostAllocDefault), kWhat);
      check(cudaEventCreateWithFlags(&slot.free, cudaEventDisableTiming), kWhat);
    }
  }
}

WeightStaging::~WeightStaging() {
  cudaStreamSynchronize(stream_);
  for (Reader& reader : readers_) {
    for (Slot& slot : reader.slots) {
      cudaFreeHost(slot.data);
      cudaEventDestroy(slot.free);
    }
  }
  cudaStreamDestroy(stream_);
}

void WeightStaging::upload(const HostTensor& tensor, std::byte* to) {
  const int64_t elements = tensor.rows() * tensor.cols();
  const int64_t pieces = (elements + kPieceElements - 1) / kPieceElements;
  const auto readers = static_cast<size_t>(std::min<int64_t>(pieces, static_cast<int64_t>(readers_.size())));
  if (readers == 0) return;
  read_ahead(tensor.data);
  std::atomic<int64_t> next = 0;
  std::vector<std::exception_ptr> errors(readers);
  std::latch others(static_cast<ptrdiff_t>(readers) - 1);
  const auto read = [&](size_t index) {
    try {
      for (int64_t piece = next++; piece < pieces; piece = next++) {
        const int64_t first = piece * kPieceElements;
        upload_piece(readers_[index], tensor, first, std::min(kPieceElements, elements - first), to);
      }
    } catch (...) {
      errors[index] = std::current_exception();
    }
  };
  for (size_t i = 1; i < readers; ++i) {
    threads_.post([&, i] {
      cudaSetDevice(device_);
      read(i);
      others.count_down();
    });
  }
  read(0);
  others.wait();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

void WeightStaging::upload_piece(Reader& reader, const HostTensor& tensor, int64_t first, int64_t count,
                                 std::byte* to) {
  Slot& slot = reader.slots[reader.next];
  reader.next = (reader.next + 1) % reader.slots.size();
  check(cudaEventSynchronize(slot.free), kWhat);
  const auto bytes = static_cast<size_t>(count) * sizeof(Bf16);
  if (tensor.dtype == DType::kBF16) {
    std::memcpy(slot.data, tensor.data.data() + first * 2, bytes);
  } else {
    reader.expanded.resize(static_cast<size_t>(count));
    dequantize(tensor, first, count, reader.expanded.data());
    std::transform(reader.expanded.begin(), reader.expanded.end(), static_cast<Bf16*>(slot.data),
                   [](float v) { return Bf16(v); });
  }
  check(cudaMemcpyAsync(to + first * 2, slot.data, bytes, cudaMemcpyHostToDevice, stream_), kWhat);
  check(cudaEventRecord(slot.free, stream_), kWhat);
}

void WeightStaging::wait() {
  check(cudaStreamSynchronize(stream_), kWhat);
}

}  // namespace zipage::cuda
