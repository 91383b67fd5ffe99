#include "millrace/jobs/launchers/node_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace millrace::jobs {

using Use = NodeState::Use;

NodePool::NodePool(std::vector<std::string> names, std::vector<int> sizes) : sizes_(std::move(sizes)) {
  for (std::string& name : names) nodes_.push_back({.name = std::move(name)});
}

bool NodePool::IsReady(std::size_t node) const {
  return nodes_[node].use == Use::kRuns || nodes_[node].use == Use::kSpare;
}

bool NodePool::MayBeAsked(std::size_t node) const {
  return nodes_[node].use == Use::kLost || nodes_[node].use == Use::kUnfit;
}

std::size_t NodePool::CountReady() const {
  std::size_t ready = 0;
  for (std::size_t node = 0; node < nodes_.size(); ++node) ready += IsReady(node) ? 1 : 0;
  return ready;
}

void NodePool::NoteReady(std::size_t node) {
  if (!MayBeAsked(node)) return;
  nodes_[node].use = Use::kSpare;
  nodes_[node].reason.clear();
}

void NodePool::NoteLost(std::size_t node, std::string why) {
  if (nodes_[node].use == Use::kSetAside) return;
  nodes_[node].use = Use::kLost;
  nodes_[node].reason = std::move(why);
}

void NodePool::NoteUnfit(std::size_t node, std::string why) {
  if (nodes_[node].use == Use::kSetAside) return;
  nodes_[node].use = Use::kUnfit;
  nodes_[node].reason = std::move(why);
}

void NodePool::NoteWarnings(std::size_t node, std::vector<std::string> warnings) {
  nodes_[node].warnings = std::move(warnings);
}

bool NodePool::SetAside(std::string_view name, std::string why) {
  const auto found = std::ranges::find(nodes_, name, &NodeState::name);
  if (found == nodes_.end() || found->use == Use::kSetAside) return false;
  const auto node = static_cast<std::size_t>(found - nodes_.begin());
  const std::size_t others = CountReady() - (IsReady(node) ? 1 : 0);
  if (others < static_cast<std::size_t>(*std::ranges::min_element(sizes_))) return false;
  found->use = Use::kSetAside;
  found->reason = std::move(why);
  return true;
}

std::vector<std::size_t> NodePool::ToAsk() const {
  std::vector<std::size_t> nodes;
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    if (IsReady(node)) nodes.push_back(node);
  }
  return nodes;
}

std::vector<std::size_t> NodePool::LastResort() const {
  std::vector<std::size_t> nodes;
  for (std::size_t node = 0; NextSize() == 0 && node < nodes_.size(); ++node) {
    if (MayBeAsked(node)) nodes.push_back(node);
  }
  return nodes;
}

std::vector<std::size_t> NodePool::MayReturn() const {
  std::vector<std::size_t> nodes;
  if (static_cast<int>(placed_.size()) >= BestSize()) return nodes;
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    if (MayBeAsked(node)) nodes.push_back(node);
  }
  return nodes;
}

int NodePool::NextSize() const {
  const std::size_t ready = CountReady();
  const auto size = std::ranges::find_if(sizes_, [&](int each) { return static_cast<std::size_t>(each) <= ready; });
  return size == sizes_.end() ? 0 : *size;
}

Result<std::vector<std::size_t>> NodePool::Place() {
  const int size = NextSize();
  if (size == 0) {
    std::string reasons;
    for (const NodeState& node : nodes_) {
      if (!node.reason.empty()) reasons += (reasons.empty() ? "" : "; ") + node.reason;
    }
    return Fail(Code::kUnavailable, "{} nodes are needed and {} ready: {}", *std::ranges::min_element(sizes_),
                CountReady(), reasons);
  }
  constexpr std::size_t kNobody = static_cast<std::size_t>(-1);
  std::vector<std::size_t> slots = placed_;
  slots.resize(static_cast<std::size_t>(size), kNobody);
  for (std::size_t& slot : slots) {
    if (slot != kNobody && !IsReady(slot)) slot = kNobody;
  }
  std::size_t next = 0;
  for (std::size_t& slot : slots) {
    if (slot != kNobody) continue;
    while (!IsReady(next) || std::ranges::find(slots, next) != slots.end()) ++next;
    slot = next;
  }
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    if (IsReady(node)) nodes_[node].use = std::ranges::find(slots, node) != slots.end() ? Use::kRuns : Use::kSpare;
  }
  placed_ = std::move(slots);
  return placed_;
}

std::size_t NodePool::Replaceable() const {
  for (const std::size_t node : placed_) {
    if (nodes_[node].use == Use::kUnfit && NextSize() > 0) return node;
  }
  return size();
}

}  // namespace millrace::jobs
