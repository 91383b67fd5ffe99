#include "millrace/collectives/operation_checks.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace millrace::engine {

Status CheckTensor(const char* operation, const at::Tensor& tensor) {
  if (!tensor.defined()) return Fail(Code::kInvalidArgument, "{}: the tensor is undefined", operation);
  if (!tensor.is_contiguous()) return Fail(Code::kInvalidArgument, "{}: the tensor is not contiguous", operation);
  return {};
}

Status CheckReducible(const char* operation, const at::Tensor& tensor, Reduction reduction) {
  MR_TRY(CheckTensor(operation, tensor));
  if (reduction == Reduction::kMean && !at::isFloatingType(tensor.scalar_type())) {
    return Fail(Code::kInvalidArgument, "{}: no mean of {}", operation, c10::toString(tensor.scalar_type()));
  }
  switch (tensor.scalar_type()) {
    case at::kFloat:
    case at::kBFloat16:
    case at::kHalf:
    case at::kDouble:
    case at::kLong:
    case at::kInt:
    case at::kByte:
      return {};
    default:
      return Fail(Code::kInvalidArgument, "{}: no reduction of {}", operation, c10::toString(tensor.scalar_type()));
  }
}

Status CheckAllReducible(const at::Tensor& tensor, Reduction reduction) {
  if (reduction == Reduction::kAddSum) {
    return Fail(Code::kInvalidArgument, "all-reduce: a sum is added to the result of reduce-scatters only");
  }
  return CheckReducible("all-reduce", tensor, reduction);
}

Status CheckParts(const char* operation, const at::Tensor& all, const at::Tensor& mine, int ranks) {
  MR_TRY(CheckTensor(operation, all));
  MR_TRY(CheckTensor(operation, mine));
  if (all.scalar_type() != mine.scalar_type()) {
    return Fail(Code::kInvalidArgument, "{}: the whole is {}, the part {}", operation, c10::toString(all.scalar_type()),
                c10::toString(mine.scalar_type()));
  }
  if (all.device() != mine.device()) {
    return Fail(Code::kInvalidArgument, "{}: the whole is on {}, the part on {}", operation, all.device().str(),
                mine.device().str());
  }
  if (all.numel() != mine.numel() * ranks) {
    return Fail(Code::kInvalidArgument, "{}: {} ranks × {} elements = {}, but the whole tensor has {}", operation,
                ranks, mine.numel(), mine.numel() * ranks, all.numel());
  }
  return {};
}

Status CheckPeer(const char* operation, int peer, int self, int ranks) {
  if (peer < 0 || peer >= ranks || peer == self) {
    return Fail(Code::kInvalidArgument, "{}: {} is not another rank; this is rank {} of {}", operation, peer, self,
                ranks);
  }
  return {};
}

Status CheckSplit(const std::string& name, std::span<const int> members, int self, int ranks) {
  for (std::size_t i = 0; i < members.size(); ++i) {
    const auto rest = members.subspan(i + 1);
    if (members[i] < 0 || members[i] >= ranks || std::ranges::find(rest, members[i]) != rest.end()) {
      return Fail(Code::kInvalidArgument, "split {}: {} are not distinct ranks below {}", name,
                  fmt::join(members, ", "), ranks);
    }
  }
  if (std::ranges::find(members, self) == members.end()) {
    return Fail(Code::kInvalidArgument, "split {}: rank {} is not a member", name, self);
  }
  return {};
}

}  // namespace millrace::engine
