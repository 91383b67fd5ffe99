#include "millrace/tokenizer/train/train.h"

#include <sentencepiece_trainer.h>

#include <algorithm>
#include <queue>
#include <string>
#include <unordered_map>
#include <vector>

#include "millrace/base/hash/random.h"
#include "millrace/base/text.h"

namespace millrace::tokenizer {
namespace {

constexpr std::size_t kMaxSentenceBytes = 4096;  // the trainer silently skips those above 4,192

/// Keeps a uniform sample of a stream of sentences, of at most `max_bytes`: those whose hashed position is smallest.
/// One pass, bounded memory, and the same sample for the same input.
class SentenceSample {
 public:
  SentenceSample(std::uint64_t max_bytes, std::uint64_t seed) : max_bytes_(max_bytes), seed_(seed) {}

  void Add(std::string_view sentence) {
    std::uint64_t position = next_position_++;
    std::uint64_t rank = Mix64(Mix64(seed_) ^ position);
    if (full_ && rank > kept_.top().rank) return;
    kept_.push({rank, position, std::string(sentence)});
    bytes_ += sentence.size();
    while (bytes_ > max_bytes_ && kept_.size() > 1) {
      bytes_ -= kept_.top().text.size();
      kept_.pop();
      full_ = true;
    }
  }

  /// The kept sentences in the order of the stream. Empties the sample.
  std::vector<std::string> Take() {
    std::vector<Kept> kept;
    for (; !kept_.empty(); kept_.pop()) kept.push_back(std::move(const_cast<Kept&>(kept_.top())));
    std::ranges::sort(kept, {}, &Kept::position);
    std::vector<std::string> sentences;
    for (Kept& one : kept) sentences.push_back(std::move(one.text));
    return sentences;
  }

 private:
  struct Kept {
    std::uint64_t rank, position;
    std::string text;
    bool operator<(const Kept& other) const { return rank < other.rank; }
  };

  const std::uint64_t max_bytes_, seed_;
  std::uint64_t next_position_ = 0, bytes_ = 0;
  bool full_ = false;
  std::priority_queue<Kept> kept_;
};

/// Returns the length of the longest beginning of `line` that the trainer takes. Cuts at a space if there is one, and
/// never inside a character.
std::size_t SentenceLength(std::string_view line) {
  if (line.size() <= kMaxSentenceBytes) return line.size();
  std::size_t space = line.rfind(' ', kMaxSentenceBytes);
  if (space != line.npos && space > kMaxSentenceBytes / 2) return space;
  std::size_t end = kMaxSentenceBytes;
  while (end > kMaxSentenceBytes - 4 && (line[end] & 0xC0) == 0x80) --end;
  return end;
}

void AddSentences(std::string_view document, SentenceSample& sample) {
  for (std::string_view line : Split(document, '\n')) {
    while (!line.empty()) {
      std::size_t length = SentenceLength(line);
      sample.Add(line.substr(0, length));
      line.remove_prefix(length);
    }
  }
}

class VectorIterator final : public sentencepiece::SentenceIterator {
 public:
  explicit VectorIterator(const std::vector<std::string>& sentences) : sentences_(sentences) {}
  bool done() const override { return at_ >= sentences_.size(); }
  void Next() override { ++at_; }
  const std::string& value() const override { return sentences_[at_]; }
  decltype(std::declval<sentencepiece::SentenceIterator>().status()) status() const override { return {}; }

 private:
  const std::vector<std::string>& sentences_;
  std::size_t at_ = 0;
};

/// Returns Llama 2's settings, with the options' sizes of the vocabulary and of the input.
std::unordered_map<std::string, std::string> TrainerArguments(const TrainOptions& options) {
  return {
      {"model_type", "bpe"},
      {"vocab_size", std::to_string(options.vocab_size)},
      {"character_coverage", fmt::format("{}", options.character_coverage)},
      {"num_threads", std::to_string(options.threads)},
      {"normalization_rule_name", "identity"},
      {"add_dummy_prefix", "true"},
      {"remove_extra_whitespaces", "false"},
      {"byte_fallback", "true"},
      {"split_digits", "true"},
      {"allow_whitespace_only_pieces", "true"},
      {"unk_id", "0"},
      {"bos_id", "1"},
      {"eos_id", "2"},
      {"pad_id", "-1"},
      {"minloglevel", "2"},
  };
}

/// Returns the error of a training that failed. The library's message begins with its source line.
Error WhyNotTrained(std::string_view message, const TrainOptions& options) {
  constexpr std::string_view kAtMost = "set it to a value <= ";
  if (const std::size_t at = message.find(kAtMost); at != message.npos) {
    const std::string_view most = message.substr(at + kAtMost.size());
    return Error(Code::kInvalidArgument,
                 fmt::format("the text gives a vocabulary of at most {} pieces, not {}; train on more text, or on a "
                             "smaller vocabulary",
                             most.substr(0, most.find_first_not_of("0123456789")), options.vocab_size));
  }
  constexpr std::string_view kCharacters = "required_chars. ", kAgainst = " vs ";
  const std::size_t characters = message.find(kCharacters);
  if (const std::size_t at = message.find(kAgainst, characters); characters != message.npos && at != message.npos) {
    const std::string_view least = message.substr(at + kAgainst.size());
    return Error(Code::kInvalidArgument,
                 fmt::format("the text's characters need a vocabulary of at least {} pieces, not {}; a lower character "
                             "coverage needs fewer",
                             least.substr(0, least.find_first_not_of("0123456789")), options.vocab_size));
  }
  const std::size_t check = message.rfind("] ");  // "src/file.cc(660) [condition] What is wrong."
  return Error(
      Code::kInvalidArgument,
      fmt::format(
          "training a vocabulary of {} pieces: {}; try more text, another --vocab-size or a lower --character-coverage",
          options.vocab_size, check == message.npos ? message : message.substr(check + 2)));
}

}  // namespace

Result<std::string> TrainSentencePieceBpe(const std::function<Result<bool>(std::string& document)>& next,
                                          TrainOptions options) {
  constexpr int kFewestPieces = 3 + 256 + 1;  // specials, bytes, the space
  if (options.vocab_size < kFewestPieces) {
    return Fail(Code::kInvalidArgument,
                "a vocabulary of {} is too small: 3 special tokens, 256 bytes and the text's "
                "own characters must fit",
                options.vocab_size);
  }
  SentenceSample sample(options.max_input_bytes, options.seed);
  std::string document;
  std::uint64_t broken = 0, documents = 0;
  while (MR_TRY(next(document))) {
    ++documents;
    if (IsValidUtf8(document)) {
      AddSentences(document, sample);
    } else {
      ++broken;
    }
    document.clear();
  }
  std::vector<std::string> sentences = sample.Take();
  if (sentences.empty()) {
    return Fail(
        Code::kInvalidArgument,
        "no text to train a tokenizer on ({} documents, {} of them not UTF-8); check what --input and --template name",
        documents, broken);
  }
  VectorIterator iterator(sentences);
  std::string model;
  auto status = sentencepiece::SentencePieceTrainer::Train(TrainerArguments(options), &iterator, &model);
  if (!status.ok()) return Fail(WhyNotTrained(status.ToString(), options));
  return model;
}

}  // namespace millrace::tokenizer
