#include "millrace/collectives/operation_checks.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace millrace::collectives {

Status CheckElements(const char* operation, const Elements& elements) {
  if (elements.fault != nullptr) {
    return Fail(Code::kInvalidArgument, "{}: what it works on is {}", operation, elements.fault);
  }
  return {};
}

Status CheckReducible(const char* operation, const Elements& elements, Reduction reduction) {
  MR_TRY(CheckElements(operation, elements));
  if (reduction == Reduction::kMean && !IsFloatingPoint(elements.type)) {
    return Fail(Code::kInvalidArgument, "{}: no mean of {}", operation, NameOf(elements.type));
  }
  if (elements.type == ElementType::kBytes) {
    return Fail(Code::kInvalidArgument, "{}: no reduction of elements of their type", operation);
  }
  return {};
}

Status CheckAllReducible(const Elements& elements, Reduction reduction) {
  if (reduction == Reduction::kAddSum) {
    return Fail(Code::kInvalidArgument, "all-reduce: a sum is added to the result of reduce-scatters only");
  }
  return CheckReducible("all-reduce", elements, reduction);
}

Status CheckParts(const char* operation, const Elements& all, const Elements& mine, int ranks) {
  MR_TRY(CheckElements(operation, all));
  MR_TRY(CheckElements(operation, mine));
  if (all.type != mine.type) {
    return Fail(Code::kInvalidArgument, "{}: the whole is {}, the part {}", operation, NameOf(all.type),
                NameOf(mine.type));
  }
  if (all.device != mine.device) {
    return Fail(Code::kInvalidArgument, "{}: the whole is on {}, the part on {}", operation, all.device.ToText(),
                mine.device.ToText());
  }
  if (all.count != mine.count * ranks) {
    return Fail(Code::kInvalidArgument, "{}: {} ranks × {} elements = {}, but the whole has {}", operation, ranks,
                mine.count, mine.count * ranks, all.count);
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

}  // namespace millrace::collectives
