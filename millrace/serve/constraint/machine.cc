#include "millrace/serve/constraint/machine.h"

#include <algorithm>

#include "millrace/base/hash/random.h"

namespace millrace::serve {
namespace {

constexpr std::int32_t kUnknown = -2;
/// A way costs this much besides the nodes that are visited: it is looked up, and may need a state.
constexpr std::int64_t kWayCost = 16;

std::size_t HashOf(const GrammarMachine::Arrival& arrival) {
  std::uint64_t hash = arrival.accepts ? 1 : 0;
  for (const auto& [node, stack] : arrival.places) {
    hash = Mix64(hash ^ (static_cast<std::uint64_t>(node) << 32 | static_cast<std::uint32_t>(stack)));
  }
  return hash;
}

}  // namespace

GrammarMachine::GrammarMachine(Grammar grammar) : grammar_(std::move(grammar)), visited_(grammar_.nodes().size()) {
  start_ = Close({{grammar_.start(0), 0}});
}

GrammarMachine::Stack GrammarMachine::Push(Stack stack, Grammar::NodeId next) {
  // A call at the end of a rule goes back to where the rule was called from.
  if (grammar_.nodes()[static_cast<std::size_t>(next)].kind == Grammar::Node::Kind::kReturn) return stack;
  const auto known = stacks_.find({stack, next});
  if (known != stacks_.end()) return known->second;
  if (frames_.size() >= kMaxStacks) return -1;
  const auto made = static_cast<Stack>(frames_.size());
  stacks_.emplace(std::pair(stack, next), made);
  frames_.push_back({.below = stack, .next = next, .depth = frames_[static_cast<std::size_t>(stack)].depth + 1});
  return made;
}

void GrammarMachine::BeginVisits() {
  constexpr std::size_t kMaxRemembered = 65'536;
  if (++visits_ != 0 && visited_behind_.size() <= kMaxRemembered) return;
  std::fill(visited_.begin(), visited_.end(), 0);
  visited_behind_ = {};
  visits_ = 1;
}

bool GrammarMachine::Visit(const Place& place) {
  const auto [node, stack] = place;
  std::uint32_t& last =
      stack == 0 ? visited_[static_cast<std::size_t>(node)]
                 : visited_behind_[static_cast<std::uint64_t>(node) << 32 | static_cast<std::uint32_t>(stack)];
  return std::exchange(last, visits_) != visits_;
}

std::shared_ptr<const GrammarMachine::Arrival> GrammarMachine::Close(std::vector<Place> arrived) {
  using Kind = Grammar::Node::Kind;
  auto closed = std::make_shared<Arrival>();
  BeginVisits();
  while (!arrived.empty()) {
    const Place place = arrived.back();
    arrived.pop_back();
    if (!Visit(place)) continue;
    if (++closed->cost > kMaxVisits) return nullptr;
    const auto [id, stack] = place;
    const Grammar::Node& node = grammar_.nodes()[static_cast<std::size_t>(id)];
    switch (node.kind) {
      case Kind::kByte:
        closed->places.push_back(place);
        break;
      case Kind::kChoice:
        arrived.emplace_back(node.next, stack);
        arrived.emplace_back(node.other, stack);
        break;
      case Kind::kCall:
        if (frames_[static_cast<std::size_t>(stack)].depth < kMaxDepth) {
          const Stack behind = Push(stack, node.next);
          if (behind >= 0) arrived.emplace_back(grammar_.start(node.rule), behind);
        }
        break;
      case Kind::kReturn:
        if (stack == 0) {
          closed->accepts = true;
        } else {
          const Frame& frame = frames_[static_cast<std::size_t>(stack)];
          arrived.emplace_back(frame.next, frame.below);
        }
        break;
    }
  }
  if (closed->places.empty() && !closed->accepts) return nullptr;
  std::sort(closed->places.begin(), closed->places.end());
  return closed;
}

GrammarMachine::State GrammarMachine::Number(const std::shared_ptr<const Arrival>& arrival) {
  if (!arrival) return kDead;
  const std::size_t hash = HashOf(*arrival);
  const auto [first, last] = known_.equal_range(hash);
  for (auto known = first; known != last; ++known) {
    const Arrival& other = *states_[static_cast<std::size_t>(known->second)].arrival;
    if (other.accepts == arrival->accepts && other.places == arrival->places) return known->second;
  }
  const auto made = static_cast<State>(states_.size());
  known_.emplace(hash, made);
  states_.push_back({.arrival = arrival});
  bytes_ += sizeof(StateData) + sizeof(Arrival) + 64 + arrival->places.capacity() * sizeof(Place);
  return made;
}

void GrammarMachine::BeginRound() {
  ++round_;
  work_ = 0;
}

void GrammarMachine::CountWork(StateData& from, unsigned char byte, State to) {
  if (from.counted_in != round_) from.counted.reset();
  from.counted_in = round_;
  if (from.counted.test(byte)) return;
  from.counted.set(byte);
  const std::size_t behind = to == kDead ? 0 : states_[static_cast<std::size_t>(to)].arrival->cost;
  work_ += kWayCost + static_cast<std::int64_t>(from.arrival->places.size() + behind);
}

GrammarMachine::State GrammarMachine::Next(State from, unsigned char byte) {
  const auto place = static_cast<std::size_t>(from);
  if (!states_[place].next) {
    states_[place].next = std::make_unique<std::array<State, 256>>();
    states_[place].next->fill(kUnknown);
    bytes_ += sizeof(std::array<State, 256>);
  }
  State& known = (*states_[place].next)[byte];  // the array stays where it is when states are added
  if (known == kUnknown) {
    std::vector<Place> arrived;
    for (const auto& [id, stack] : states_[place].arrival->places) {
      const Grammar::Node& node = grammar_.nodes()[static_cast<std::size_t>(id)];
      if (node.bytes.test(byte)) arrived.emplace_back(node.next, stack);
    }
    known = arrived.empty() ? kDead : Number(Close(std::move(arrived)));
  }
  CountWork(states_[place], byte, known);
  return known;
}

std::uint32_t GrammarMachine::Trim() {
  if (bytes_ > kMaxBytes) {
    states_.clear();
    known_.clear();
    bytes_ = 0;
    ++generation_;
  }
  return generation_;
}

}  // namespace millrace::serve
