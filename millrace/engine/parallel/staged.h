// Exchanges of tensors on a GPU through the memory of the host.
#pragma once

#include <functional>
#include <memory>

#include "millrace/engine/parallel/collective.h"

namespace millrace::engine {

/// Returns a group that also takes tensors of `device`: copies in pinned memory of the host go through `inner`. So all
/// layouts run with several ranks on one GPU, and on machines without a fast way between GPUs. Tensors on the CPU pass
/// through as they are, and groups that are split from this one are staged, too.
///
/// A start waits until the device has computed what it sends. Pending::Wait() does not wait for the copy back: it is on
/// the current stream of the thread, in front of what that thread starts next. Sums and means of float16 are made in
/// float32 and rounded once. An
/// exchange over NCCL (nccl/) takes this one's place where each rank has a GPU of its own. A group of one rank is
/// `inner` itself.
///
/// `stages`: which tensors are copied; tests stage those of the CPU. Empty: those that are not on the CPU.
std::unique_ptr<Collective> StageThroughHost(std::unique_ptr<Collective> inner, at::Device device,
                                             std::function<bool(const Elements&)> stages = {});

}  // namespace millrace::engine
