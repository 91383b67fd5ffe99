#include "millrace/serve/drafter.h"

#include <algorithm>
#include <utility>

namespace millrace::serve {

void Drafter::Release(Sequence& sequence) {
  pool_.Release(sequence.blocks);
  sequence = {};
}

/// Takes the blocks for what a text has and for its guesses. Returns whether there is room.
bool Drafter::Prepare(DraftRequest& wanted) {
  Sequence& sequence = *wanted.sequence;
  const std::size_t known = wanted.tokens.size();
  const auto in_block = static_cast<std::size_t>(pool_.block_tokens());
  if (known + wanted.most - 1 > static_cast<std::size_t>(model_.context_length())) {
    Release(sequence);
    return false;
  }
  if (sequence.stored == 0) {
    sequence.blocks = pool_.Share(wanted.tokens);
    sequence.published = sequence.blocks.size();
    sequence.stored = sequence.sure = sequence.blocks.size() * in_block;
  }
  // Guesses that were right are tokens of the text now. The text may have gone on without guesses.
  for (const TokenId guess : sequence.guessed) {
    if (sequence.sure == known || wanted.tokens[sequence.sure] != guess) break;
    ++sequence.sure;
  }
  sequence.guessed.clear();
  sequence.stored = sequence.sure = std::min(sequence.sure, known - 1);
  const std::size_t behind = known - sequence.stored;
  const std::size_t end = behind > chunk_ ? sequence.stored + chunk_ : known + wanted.most - 1;
  bool has_room = true;
  while (has_room && sequence.blocks.size() * in_block < end) {
    const std::int32_t block = pool_.TakeBlock();
    has_room = block >= 0;
    if (has_room) sequence.blocks.push_back(block);
  }
  if (!has_room) Release(sequence);
  return has_room;
}

Status Drafter::DraftTokens(std::span<DraftRequest> wanted) {
  std::list<Turn> turns;
  for (DraftRequest& each : wanted) {
    each.guesses.clear();
    if (each.most == 0 || !Prepare(each)) continue;
    const auto left = each.tokens.subspan(each.sequence->stored);
    turns.push_back({&each, *each.sampler, left.first(std::min(left.size(), chunk_))});
  }
  while (!turns.empty()) {
    if (auto done = Step(turns); !done) {
      for (DraftRequest& each : wanted) each.guesses.clear();
      return done;
    }
  }
  return {};
}

/// Computes the turns' tokens, and lets each guess one more. Removes those that have all they want.
Status Drafter::Step(std::list<Turn>& turns) {
  std::vector<StepPart> parts;
  for (const Turn& turn : turns) {
    const Sequence& sequence = *turn.wanted->sequence;
    const std::size_t end = sequence.stored + turn.tokens.size();
    parts.push_back({.tokens = turn.tokens,
                     .past = static_cast<int>(sequence.stored),
                     .blocks = sequence.blocks,
                     .logits = end < turn.wanted->tokens.size() ? 0 : 1});
  }
  const auto logits = MR_TRY(model_.Step(parts));
  const auto width = static_cast<std::size_t>(model_.vocab_size());
  const auto in_block = static_cast<std::size_t>(pool_.block_tokens());
  std::size_t row = 0;
  auto part = parts.begin();
  for (auto turn = turns.begin(); turn != turns.end();) {
    DraftRequest& wanted = *turn->wanted;
    Sequence& sequence = *wanted.sequence;
    if (sequence.stored < wanted.tokens.size()) {
      sequence.sure += turn->tokens.size();
    } else {
      sequence.guessed.push_back(turn->tokens.front());
    }
    sequence.stored += turn->tokens.size();
    for (; (sequence.published + 1) * in_block <= sequence.sure; ++sequence.published) {
      pool_.Publish(wanted.tokens, std::span(sequence.blocks).first(sequence.published + 1));
    }
    const bool guesses = (part++)->logits > 0;
    const TokenId guess =
        guesses ? turn->sampler.Sample(logits.subspan(row++ * width, width)).token : tokenizer::kNoToken;
    if (guess != tokenizer::kNoToken) wanted.guesses.push_back(guess);
    const bool ends = guess == tokenizer::kNoToken || std::ranges::find(wanted.ends, guess) != wanted.ends.end();
    if (ends || wanted.guesses.size() == wanted.most) {
      turn = turns.erase(turn);
    } else {
      turn->tokens = std::span(wanted.guesses).last(1);
      ++turn;
    }
  }
  return {};
}

}  // namespace millrace::serve
