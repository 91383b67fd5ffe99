// Whether the arguments of an operation are right, on this rank.
#pragma once

#include <ATen/ATen.h>

#include <span>
#include <string>

#include "millrace/base/result.h"
#include "millrace/collectives/collective.h"

namespace millrace::engine {

// Each returns kInvalidArgument with the name of the operation and what is wrong. None looks at which device a tensor
// is on, but for the two of CheckParts(), which are on one.

Status CheckTensor(const char* operation, const at::Tensor& tensor);
Status CheckReducible(const char* operation, const at::Tensor& tensor, Reduction reduction);
Status CheckAllReducible(const at::Tensor& tensor, Reduction reduction);
/// Checks that `all` is `ranks` times `mine`.
Status CheckParts(const char* operation, const at::Tensor& all, const at::Tensor& mine, int ranks);
Status CheckPeer(const char* operation, int peer, int self, int ranks);
/// Checks the members of a group that is split from one of `ranks`.
Status CheckSplit(const std::string& name, std::span<const int> members, int self, int ranks);

}  // namespace millrace::engine
