// Finds the fastest way to make each product of a step on this GPU.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <set>

#include "millrace/engine/ops/common/gpu_product.h"

namespace millrace::engine::ops::cuda {

/// Makes each product on `device` in the usual way and by some algorithms of cuBLAS, and returns the algorithms that
/// are faster than the usual way by kSpeedupThreshold (tuning/speedup_threshold.h). They have the usual results, and
/// the same bits each time. Calls `after_each` after each product; it may be empty. Blocks for some milliseconds or
/// twenty products an algorithm. Throws c10::Error if memory runs out.
std::map<GpuProduct, GpuAlgorithm> MeasureGpuProducts(const std::set<GpuProduct>& products, at::Device device,
                                                      const std::function<void()>& after_each = {});

}  // namespace millrace::engine::ops::cuda
