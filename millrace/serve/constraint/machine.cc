#include "millrace/serve/constraint/machine.h"

#include <algorithm>
#include <set>

namespace millrace::serve {
namespace {

constexpr std::int32_t kUnknown = -2;

}  // namespace

GrammarMachine::GrammarMachine(Grammar grammar) : grammar_(std::move(grammar)) {
  start_ = Intern({{grammar_.start(0), 0}});
}

GrammarMachine::Stack GrammarMachine::Push(Stack stack, Grammar::NodeId next) {
  // A call at the end of a rule goes back to where the rule was called from.
  if (grammar_.nodes()[static_cast<std::size_t>(next)].kind == Grammar::Node::Kind::kReturn) return stack;
  const auto [known, is_new] = stacks_.try_emplace({stack, next}, static_cast<Stack>(frames_.size()));
  if (is_new) {
    frames_.push_back({.below = stack, .next = next, .depth = frames_[static_cast<std::size_t>(stack)].depth + 1});
  }
  return known->second;
}

GrammarMachine::StateData GrammarMachine::Close(std::vector<Place> arrived) {
  using Kind = Grammar::Node::Kind;
  StateData state;
  std::set<Place> seen;
  while (!arrived.empty()) {
    const Place place = arrived.back();
    arrived.pop_back();
    if (!seen.insert(place).second) continue;
    const auto [id, stack] = place;
    const Grammar::Node& node = grammar_.nodes()[static_cast<std::size_t>(id)];
    switch (node.kind) {
      case Kind::kByte:
        state.places.push_back(place);
        break;
      case Kind::kChoice:
        arrived.emplace_back(node.next, stack);
        arrived.emplace_back(node.other, stack);
        break;
      case Kind::kCall:
        if (frames_[static_cast<std::size_t>(stack)].depth < kMaxDepth) {
          arrived.emplace_back(grammar_.start(node.rule), Push(stack, node.next));
        }
        break;
      case Kind::kReturn:
        if (stack == 0) {
          state.accepts = true;
        } else {
          const Frame& frame = frames_[static_cast<std::size_t>(stack)];
          arrived.emplace_back(frame.next, frame.below);
        }
        break;
    }
  }
  std::sort(state.places.begin(), state.places.end());
  return state;
}

GrammarMachine::State GrammarMachine::Intern(std::vector<Place> arrived) {
  StateData state = Close(std::move(arrived));
  if (state.places.empty() && !state.accepts) return kDead;
  const auto known = known_.find({state.places, state.accepts});
  if (known != known_.end()) return known->second;
  if (full()) return kDead;
  const auto made = static_cast<State>(states_.size());
  known_.emplace(std::pair(state.places, state.accepts), made);
  states_.push_back(std::move(state));
  return made;
}

GrammarMachine::State GrammarMachine::Next(State from, unsigned char byte) {
  const auto place = static_cast<std::size_t>(from);
  if (!states_[place].next) {
    states_[place].next = std::make_unique<std::array<State, 256>>();
    states_[place].next->fill(kUnknown);
  }
  State& known = (*states_[place].next)[byte];  // the array stays where it is when states are added
  if (known != kUnknown) return known;
  std::vector<Place> arrived;
  for (const auto& [id, stack] : states_[place].places) {
    const Grammar::Node& node = grammar_.nodes()[static_cast<std::size_t>(id)];
    if (node.bytes.test(byte)) arrived.emplace_back(node.next, stack);
  }
  known = Intern(std::move(arrived));
  return known;
}

}  // namespace millrace::serve
