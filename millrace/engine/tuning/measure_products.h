// Finds the fastest way to make each product of a step on this machine.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/engine/ops/common/step_kernels.h"

namespace millrace::engine::ops {

/// Makes products of each shape with each method, and returns the methods that are faster than the default by more than
/// measurements differ. Products take the threads that the caller's would. Calls `after_each` after each shape; it may
/// be empty. Blocks for some tens of milliseconds or ten products a method, whichever is longer.
/// Throws c10::Error if memory runs out.
std::map<ProductShape, ProductMethod> MeasureProducts(const std::set<ProductShape>& shapes, Clock& clock,
                                                      const std::function<void()>& after_each = {});

/// Returns the version of oneDNN: "2.6.0".
std::string OneDnnVersion();

}  // namespace millrace::engine::ops
