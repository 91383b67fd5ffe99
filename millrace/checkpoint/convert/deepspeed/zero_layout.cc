#include "millrace/checkpoint/convert/deepspeed/zero_layout.h"

#include <algorithm>
#include <numeric>

namespace millrace::checkpoint {
namespace {

/// A sequence of flat tensors that are read one after the other.
class FlatCursor {
 public:
  /// A flat tensor of the sequence.
  struct Part {
    std::size_t rank = 0, flat = 0;
    std::uint64_t elements = 0;
  };
  explicit FlatCursor(std::vector<Part> parts) : parts_(std::move(parts)) {}

  std::uint64_t elements() const {
    std::uint64_t sum = 0;
    for (const Part& part : parts_) sum += part.elements;
    return sum;
  }
  /// Appends the runs of the next `run.elements` elements, of which the first is element run.begin of the parameter.
  /// REQUIRES: that many elements are left.
  void Take(ZeroRun run, std::vector<ZeroRun>& runs) {
    while (run.elements > 0) {
      const Part& part = parts_[part_];
      ZeroRun next = run;
      next.elements = std::min(run.elements, part.elements - position_);
      next.rank = part.rank;
      next.flat = part.flat;
      next.offset = position_;
      if (next.elements > 0) runs.push_back(next);
      run.begin += next.elements;
      run.elements -= next.elements;
      Skip(next.elements);
    }
  }
  /// Skips elements inside the sequence.
  void Skip(std::uint64_t elements) {
    position_ += elements;
    while (part_ < parts_.size() && position_ >= parts_[part_].elements) position_ -= parts_[part_++].elements;
  }

 private:
  std::vector<Part> parts_;
  std::size_t part_ = 0;
  std::uint64_t position_ = 0;  ///< in parts_[part_]
};

/// The sum of the parameters' shares of one rank. 64 bits are enough: TensorMeta::Check bounds each parameter.
Result<std::uint64_t> Sum(const ZeroGroup& group, std::uint64_t ranks) {
  unsigned __int128 sum = 0;
  for (const ZeroParameter& parameter : group) sum += (parameter.elements + ranks - 1) / ranks;
  if (sum > INT64_MAX) return Fail(Code::kCorrupt, "the parameters are impossibly large");
  return static_cast<std::uint64_t>(sum);
}

}  // namespace

Result<std::vector<ZeroRun>> RunsOfStage2(const std::vector<ZeroGroup>& groups, const FlatSizes& sizes) {
  std::vector<ZeroRun> runs;
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    if (sizes[rank].size() != groups.size()) {
      return Fail(Code::kCorrupt, "rank {} has {} groups of parameters instead of {}", rank, sizes[rank].size(),
                  groups.size());
    }
  }
  const std::uint64_t align = 2 * sizes.size();
  for (std::size_t group = 0; group < groups.size(); ++group) {
    std::vector<FlatCursor::Part> parts;
    for (std::size_t rank = 0; rank < sizes.size(); ++rank) parts.push_back({rank, group, sizes[rank][group]});
    FlatCursor cursor(std::move(parts));
    const std::uint64_t wanted = MR_TRY(Sum(groups[group], 1)), there = cursor.elements();
    if (there < wanted || (there + align - 1) / align != (wanted + align - 1) / align) {
      return Fail(Code::kCorrupt, "group {} has {} elements, its parameters have {}: files of two saves are mixed",
                  group, there, wanted);
    }
    for (std::size_t i = 0; i < groups[group].size(); ++i)
      cursor.Take({.group = group, .parameter = i, .elements = groups[group][i].elements}, runs);
  }
  return runs;
}

Result<std::vector<ZeroRun>> RunsOfStage3(const std::vector<ZeroGroup>& groups, const FlatSizes& sizes) {
  std::uint64_t wanted = 0;
  for (const ZeroGroup& group : groups) wanted += MR_TRY(Sum(group, sizes.size()));
  std::vector<ZeroRun> runs;
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    std::vector<FlatCursor::Part> parts;
    for (std::size_t flat = 0; flat < sizes[rank].size(); ++flat) parts.push_back({rank, flat, sizes[rank][flat]});
    FlatCursor cursor(std::move(parts));
    if (cursor.elements() != wanted) {
      return Fail(Code::kCorrupt,
                  "rank {} has {} elements, its shares of the parameters have {}: files of two saves are "
                  "mixed",
                  rank, cursor.elements(), wanted);
    }
    for (std::size_t group = 0; group < groups.size(); ++group) {
      for (std::size_t i = 0; i < groups[group].size(); ++i) {
        const std::uint64_t elements = groups[group][i].elements;
        const std::uint64_t share = (elements + sizes.size() - 1) / sizes.size();
        const std::uint64_t begin = std::min(rank * share, elements);
        const std::uint64_t own = std::min(share, elements - begin);
        cursor.Take({.group = group, .parameter = i, .begin = begin, .elements = own}, runs);
        cursor.Skip(share - own);
      }
    }
  }
  return runs;
}

}  // namespace millrace::checkpoint
