// Device-side building blocks that several kernels share: vector access, warp and block reductions, asynchronous copies
// into shared memory, tensor-core fragments. Everything works from sm_80 on.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace zipage::cuda {

using bf16 = __nv_bfloat16;
using fp8 = __nv_fp8_storage_t;

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kFullMask = 0xffffffffU;
inline constexpr float kLog2e = 1.4426950408889634F;

__host__ __device__ constexpr int ceil_div(int a, int b) {
  return (a + b - 1) / b;
}
__host__ __device__ constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// ---- vectors of 16-bit values ---------------------------------------------------------------------------------------

// An instruction an element; CUDA's own conversion takes two for the upper one.
__device__ __forceinline__ float2 unpack(uint32_t pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000U));
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  uint32_t bits;
  memcpy(&bits, &v, sizeof(bits));
  return bits;
}

__device__ __forceinline__ uint32_t pack_half(float low, float high) {
  const __half2 v = __floats2half2_rn(low, high);
  uint32_t bits;
  memcpy(&bits, &v, sizeof(bits));
  return bits;
}

__device__ __forceinline__ void unpack8(uint4 v, float (&out)[8]) {
  const float2 a = unpack(v.x), b = unpack(v.y), c = unpack(v.z), d = unpack(v.w);
  out[0] = a.x, out[1] = a.y, out[2] = b.x, out[3] = b.y, out[4] = c.x, out[5] = c.y, out[6] = d.x, out[7] = d.y;
}

__device__ __forceinline__ void load8(const float* from, float (&out)[8]) {
  const float4 a = reinterpret_cast<const float4*>(from)[0], b = reinterpret_cast<const float4*>(from)[1];
  out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w, out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
}

__device__ __forceinline__ uint4 pack8(const float (&v)[8]) {
  return make_uint4(pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7]));
}

// Two e4m3 values to two halves, exactly.
__device__ __forceinline__ uint32_t fp8x2_to_half2(uint32_t pair) {
  const __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair & 0xffffU), __NV_E4M3);
  uint32_t bits;
  memcpy(&bits, &raw, sizeof(bits));
  return bits;
}

__device__ __forceinline__ float2 fp8x2_to_float2(uint32_t pair) {
  const __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair & 0xffffU), __NV_E4M3);
  return __half22float2(__half2(raw));
}

__device__ __forceinline__ uint32_t float2_to_fp8x2(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

// Eight e4m3 values to bf16, exactly.
__device__ __forceinline__ uint4 fp8x8_to_bf16x8(uint2 codes) {
  const uint32_t words[2] = {codes.x, codes.y};
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float2 low = fp8x2_to_float2(words[i]), high = fp8x2_to_float2(words[i] >> 16);
    pairs[2 * i] = pack(low.x, low.y), pairs[2 * i + 1] = pack(high.x, high.y);
  }
  return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

// ---- reductions ----------------------------------------------------------------------------------------------------

struct Sum {
  __device__ static float combine(float a, float b) { return a + b; }
  __device__ static float identity() { return 0.0F; }
};
struct Max {
  __device__ static float combine(float a, float b) { return fmaxf(a, b); }
  __device__ static float identity() { return -INFINITY; }
};

template <typename Op>
__device__ __forceinline__ float warp_reduce(float v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) v = Op::combine(v, __shfl_xor_sync(kFullMask, v, offset));
  return v;
}

// Combines kCount values over the lanes that differ in the bits of a lane's number from kFirst down to kLast. Every
// exchange leaves each half of the lanes with half of the values, so a lane gets kLeft of them; which, the bits say.
template <typename Op, int kFirst, int kLast, int kCount, int kLeft>
__device__ __forceinline__ void share_out(const float (&v)[kCount], float (&left)[kLeft]) {
  const bool upper = (threadIdx.x & kFirst) != 0;
  float half[kCount / 2];
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const float give = upper ? v[i] : v[i + kCount / 2];
    half[i] = Op::combine(upper ? v[i + kCount / 2] : v[i], __shfl_xor_sync(kFullMask, give, kFirst));
  }
  if constexpr (kFirst > kLast) {
    share_out<Op, kFirst / 2, kLast>(half, left);
  } else {
    static_assert(kLeft == kCount / 2);
#pragma unroll
    for (int i = 0; i < kLeft; ++i) left[i] = half[i];
  }
}

// All threads of the block get the result. REQUIRES: blockDim.x a multiple of 32; `shared` holds 32 floats.
template <typename Op>
__device__ __forceinline__ float block_reduce(float v, float* shared) {
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize, warps = blockDim.x / kWarpSize;
  v = warp_reduce<Op>(v);
  __syncthreads();  // an earlier reduction through the same words is over
  if (lane == 0) shared[warp] = v;
  __syncthreads();
  return warp_reduce<Op>(lane < warps ? shared[lane] : Op::identity());
}

// ---- asynchronous copies into shared memory ------------------------------------------------------------------------

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// 16 bytes; zeros instead when !valid.
__device__ __forceinline__ void copy_async16(uint32_t to, const void* from, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
// The same with a policy for the second-level cache.
__device__ __forceinline__ void copy_async16(uint32_t to, const void* from, bool valid, uint64_t policy) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;\n" ::"r"(to), "l"(from), "r"(bytes),
               "l"(policy)
               : "memory");
}
// What is read with it leaves the cache first.
__device__ __forceinline__ uint64_t evict_first() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;\n" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void copy_commit() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// Brings a line into the nearest cache.
__device__ __forceinline__ void prefetch_near(const void* line) {
  asm volatile("prefetch.global.L1 [%0];\n" ::"l"(line));
}

// For all that the thread has started.
__device__ __forceinline__ void copy_wait_all() {
  asm volatile("cp.async.wait_all;\n" ::: "memory");
}

// Rows of kRowBytes in shared memory, 16-byte chunks permuted within a row so that the eight rows that a matrix load
// reads at one chunk index fall into eight different bank groups. kRowBytes is a multiple of 32.
template <int kRowBytes>
__device__ __forceinline__ int swizzle(int row, int chunk) {
  constexpr int kChunks = kRowBytes / 16;
  static_assert(kChunks % 2 == 0);
  if constexpr (kChunks % 8 == 0) {
    chunk ^= row & 7;
  } else if constexpr (kChunks % 4 == 0) {
    chunk ^= (row >> 1) & 3;
  } else {
    chunk ^= (row >> 2) & 1;
  }
  return row * kRowBytes + chunk * 16;
}

// ---- tensor-core fragments -----------------------------------------------------------------------------------------

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t v) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(out) : "r"(v));
  return out;
}

struct Bf16Math {
  __device__ static uint32_t pair(float low, float high) { return pack(low, high); }
};
struct HalfMath {
  __device__ static uint32_t pair(float low, float high) { return pack_half(low, high); }
};

// d += a[16x16] * b[16x8], fp32 accumulation.
template <typename Math>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<Math, Bf16Math>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// 2^x; exact zero for -inf.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace zipage::cuda
