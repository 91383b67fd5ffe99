// Chooses the machines of each attempt: which run ranks, which are spares, which are left out.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/jobs/launcher.h"

namespace millrace::jobs {

/// Knows the reports of each machine and decides from them alone; sends nothing to machines. Machines are numbered in
/// the order of their names. A machine keeps its slot, and so its ranks, from attempt to attempt as long as it is
/// ready. One owner, no locking.
class NodePool {
 public:
  /// `sizes`: the numbers of machines that an attempt may have, the best one first. REQUIRES: sizes is not empty.
  NodePool(std::vector<std::string> names, std::vector<int> sizes);

  void NoteReady(std::size_t node);
  void NoteLost(std::size_t node, std::string why);
  void NoteUnfit(std::size_t node, std::string why);
  void NoteWarnings(std::size_t node, std::vector<std::string> warnings);
  /// Returns false, and does nothing, if the others are too few for the smallest size.
  bool SetAside(std::string_view name, std::string why);

  /// Returns the machines to ask before an attempt: those that were ready or have not been asked. Lost and unfit ones
  /// are asked again only if the others are too few.
  std::vector<std::size_t> ToAsk() const;
  /// Returns the lost and unfit machines, to be asked again. None if the ready ones suffice for the smallest size.
  std::vector<std::size_t> LastResort() const;
  /// Returns the lost and unfit machines that could make the next attempt larger than this one.
  std::vector<std::size_t> MayReturn() const;
  /// Chooses the machines of an attempt, one a slot. Errors: kUnavailable, with the reason of each machine, if too few
  /// are ready.
  Result<std::vector<std::size_t>> Place();
  /// Returns the choice of the last Place(): the machine of each slot.
  const std::vector<std::size_t>& placed() const { return placed_; }

  /// Returns the number of machines that Place() would choose now; 0 if there are too few.
  int NextSize() const;
  int BestSize() const { return sizes_.front(); }
  /// Returns the first placed machine that is unfit while another can take its place, or size() if there is none.
  std::size_t Replaceable() const;

  std::size_t size() const { return nodes_.size(); }
  const NodeState& at(std::size_t node) const { return nodes_[node]; }
  std::vector<NodeState> states() const { return nodes_; }

 private:
  std::size_t CountReady() const;
  bool IsReady(std::size_t node) const;
  bool MayBeAsked(std::size_t node) const;

  const std::vector<int> sizes_;
  std::vector<NodeState> nodes_;
  std::vector<std::size_t> placed_;
};

}  // namespace millrace::jobs
