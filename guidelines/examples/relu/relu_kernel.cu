// ReLU in CuTe: each thread moves VECTORS 128-bit vectors; the last elements one by one.
#include <cute/tensor.hpp>

using namespace cute;

#ifndef VECTORS
#define VECTORS 4
#endif

// Unlike fmaxf, keeps NaN, as torch.relu does.
__device__ float rectified(float value) { return value < 0.0f ? 0.0f : value; }

__global__ void relu(const float* x, float* out, int64_t n) {
  const int64_t vectors = n / 4;
  auto layout = make_layout(make_shape(_4{}, vectors), make_stride(_1{}, _4{}));
  Tensor gX = make_tensor(make_gmem_ptr(x), layout);
  Tensor gOut = make_tensor(make_gmem_ptr(out), layout);
  using Copy = AutoVectorizingCopyWithAssumedAlignment<128>;
  const int64_t first = int64_t(blockIdx.x) * blockDim.x * VECTORS + threadIdx.x;
  Tensor held = make_tensor<float>(Shape<_4, Int<VECTORS>>{});
  // All loads before the first use: they are in flight together.
  CUTE_UNROLL
  for (int j = 0; j < VECTORS; ++j) {
    const int64_t v = first + int64_t(j) * blockDim.x;
    if (v < vectors) copy(Copy{}, gX(_, v), held(_, j));
  }
  CUTE_UNROLL
  for (int j = 0; j < VECTORS; ++j) {
    const int64_t v = first + int64_t(j) * blockDim.x;
    if (v < vectors) {
      CUTE_UNROLL
      for (int e = 0; e < 4; ++e) held(e, j) = rectified(held(e, j));
      copy(Copy{}, held(_, j), gOut(_, v));
    }
  }
  const int64_t tail = vectors * 4 + threadIdx.x;
  if (blockIdx.x == 0 && tail < n) out[tail] = rectified(x[tail]);
}
