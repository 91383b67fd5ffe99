// A label of an operation: everything that must be the same on all ranks. Ranks compare labels to detect that they have
// started different operations.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "millrace/base/result.h"
#include "millrace/collectives/collective.h"

namespace millrace::collectives {

enum class OperationKind : std::uint32_t { kAllReduce, kAllGather, kReduceScatter, kBroadcast, kMessage };

/// Everything that must be the same on the ranks of an operation. It travels as its bytes, between processes of one
/// build on machines of one kind.
struct OperationLabel {
  OperationKind kind;
  ElementType type;
  std::uint32_t detail = 0;  ///< the Reduction, or the root
  std::uint32_t zero = 0;    ///< fills the gap, so that labels compare as bytes
  std::int64_t elements = 0;

  bool operator==(const OperationLabel&) const = default;

  std::string ToText() const {
    static constexpr const char* kNames[] = {"all-reduce", "all-gather", "reduce-scatter", "broadcast", "message"};
    std::string detail_text;
    if (kind == OperationKind::kBroadcast) detail_text = fmt::format(" from rank {}", detail);
    if (kind == OperationKind::kAllReduce || kind == OperationKind::kReduceScatter) {
      detail_text = detail == static_cast<std::uint32_t>(Reduction::kMax) ? " (max)" : " (sum)";
    }
    return fmt::format("{} of {} {}{}", kNames[static_cast<std::size_t>(kind)], elements, NameOf(type), detail_text);
  }
};

inline OperationLabel LabelOf(OperationKind kind, const Elements& elements, std::uint32_t detail = 0) {
  return {.kind = kind, .type = elements.type, .detail = detail, .elements = elements.count};
}

/// Returns kInvalidArgument if `peer` has labelled its operation differently.
inline Status CompareLabels(const OperationLabel& mine, int peer, const OperationLabel& theirs) {
  if (mine == theirs) return {};
  return Fail(Code::kInvalidArgument, "this rank started {}, rank {} started {}", mine.ToText(), peer, theirs.ToText());
}

}  // namespace millrace::collectives
