// What one CUDA call takes: minimum and median over batches. For docs/verification/h200.md.
// nvcc -O2 -o percall percall.cu links the runtime statically; strip it.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

__global__ void gpumeter_nothing(int *p) {
  if (p) *p = 1;
}

template <class F> static void measure(const char *what, int batches, int calls, F f) {
  std::vector<double> ns;
  for (int b = 0; b < batches; b++) {
    cudaDeviceSynchronize();
    auto t0 = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; i++) f();
    ns.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - t0).count() / calls);
  }
  std::sort(ns.begin(), ns.end());
  printf("%s min %.0f p50 %.0f calls %d\n", what, ns.front(), ns[ns.size() / 2], batches * calls);
}

int main() {
  cudaStream_t s;
  cudaStreamCreate(&s);
  char *dst, *src;
  cudaMalloc(&dst, 4096);
  cudaMallocHost(&src, 4096);
  gpumeter_nothing<<<1, 32, 0, s>>>(nullptr);
  cudaStreamSynchronize(s);
  measure("launch", 200, 400, [&] { gpumeter_nothing<<<1, 32, 0, s>>>(nullptr); });
  measure("copy", 200, 400, [&] { cudaMemcpyAsync(dst, src, 64, cudaMemcpyHostToDevice, s); });
  measure("sync", 200, 400, [&] { cudaStreamSynchronize(s); });
  return cudaGetLastError() != cudaSuccess;
}
