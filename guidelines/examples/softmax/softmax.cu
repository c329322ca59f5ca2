// Row softmax in CuTe: one block per row, three sweeps, a tree reduction in shared memory.
#include "task.h"

#include <cute/tensor.hpp>

using namespace cute;

namespace row_softmax {

constexpr int kThreads = 128;
constexpr int kStep = 8;

template <class Combine>
__device__ float reduce(float value, Combine combine) {
  __shared__ float partial[kThreads];
  partial[threadIdx.x] = value;
  __syncthreads();
  for (int width = kThreads / 2; width > 0; width /= 2) {
    if (threadIdx.x < width) {
      partial[threadIdx.x] = combine(partial[threadIdx.x], partial[threadIdx.x + width]);
    }
    __syncthreads();
  }
  const float result = partial[0];
  __syncthreads();
  return result;
}

__global__ void softmax_kernel(const float* x, float* out, int64_t rows, int64_t cols) {
  Tensor gX = make_tensor(make_gmem_ptr(x), make_layout(make_shape(rows, cols), LayoutRight{}));
  Tensor gOut = make_tensor(make_gmem_ptr(out), make_layout(make_shape(rows, cols), LayoutRight{}));
  const int64_t end = cols - cols % kStep;
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    Tensor row = gX(r, _);
    Tensor result = gOut(r, _);
    float largest = -INFINITY;
    for (int64_t i = threadIdx.x; i < cols; i += kThreads) largest = fmaxf(largest, row(i));
    largest = reduce(largest, [](float a, float b) { return fmaxf(a, b); });
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < end; i += kThreads) sum += expf(row(i) - largest);
    sum = reduce(sum, [](float a, float b) { return a + b; });
    for (int64_t i = threadIdx.x; i < end; i += kThreads) result(i) = expf(row(i) - largest) / sum;
  }
}

}  // namespace row_softmax

extern "C" int cuteforge_launch(const float* x, float* out, int64_t rows, int64_t cols, cudaStream_t stream) {
  if (rows == 0 || cols == 0) return 0;
  const int64_t blocks = rows < 0x7fffffff ? rows : 0x7fffffff;
  row_softmax::softmax_kernel<<<static_cast<unsigned>(blocks), row_softmax::kThreads, 0, stream>>>(x, out, rows, cols);
  return cudaGetLastError();
}
