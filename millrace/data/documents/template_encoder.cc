#include "millrace/data/documents/template_encoder.h"

#include <algorithm>
#include <utility>

namespace millrace::data {
namespace {

/// The most bytes of all texts that are rendered of one record: of the conversation, and twice for each answer. A
/// guess: bounds this quadratic work.
constexpr std::uint64_t kMaxRenderedBytes = 128 * kMiB;

/// The most answers times messages of a conversation. A guess, for the same reason.
constexpr std::uint64_t kMaxMessageVisits = 250'000;

std::size_t CommonPrefix(std::string_view a, std::string_view b) {
  const std::size_t most = std::min(a.size(), b.size());
  const auto end = a.begin() + static_cast<std::ptrdiff_t>(most);
  return static_cast<std::size_t>(std::mismatch(a.begin(), end, b.begin()).first - a.begin());
}

/// Returns the length of the longest end of `text` that `pattern` begins with (Knuth, Morris, Pratt).
std::size_t Overlap(std::string_view text, std::string_view pattern) {
  pattern = pattern.substr(0, text.size());
  if (pattern.empty()) return 0;
  std::vector<std::size_t> shorter(pattern.size() + 1, 0);  // the next shorter overlap of each beginning with itself
  for (std::size_t i = 1, k = 0; i < pattern.size(); ++i) {
    while (k > 0 && pattern[i] != pattern[k]) k = shorter[k];
    if (pattern[i] == pattern[k]) ++k;
    shorter[i + 1] = k;
  }
  std::size_t matched = 0;
  for (const char c : text) {
    while (matched > 0 && (matched == pattern.size() || pattern[matched] != c)) matched = shorter[matched];
    if (pattern[matched] == c) ++matched;
  }
  return matched;
}

}  // namespace

Result<std::optional<BrokenReason>> TemplateEncoder::Encode(std::string_view record, EncodedDocument& document) {
  document.Clear();
  const auto conversation = parser_.Parse(record);
  if (!conversation) return conversation.error();
  return Encode(*conversation, document);
}

Result<std::optional<BrokenReason>> TemplateEncoder::EncodePair(std::string_view record, EncodedDocument& chosen,
                                                                EncodedDocument& rejected) {
  chosen.Clear();
  rejected.Clear();
  const auto pair = parser_.ParsePair(record);
  if (!pair) return pair.error();
  if (auto broken = MR_TRY(Encode(pair->first, chosen))) return broken;
  return Encode(pair->second, rejected);
}

Result<std::optional<BrokenReason>> TemplateEncoder::Encode(const TemplateConversation& conversation,
                                                            EncodedDocument& document) {
  rendered_ = 0;
  const auto whole = Render(conversation, conversation.messages.size(), false);
  if (!whole) return whole.error();
  const bool marked = form_.MarksAnswers(!conversation.tools.none());
  const auto spans = marked ? MarkedAnswers(conversation, *whole) : FindAnswers(conversation, whole->text);
  if (!spans) return spans.error();
  MR_TRY(Tokenize(whole->text, document));
  return Train(*spans, document);
}

std::expected<jinja::MarkedText, BrokenReason> TemplateEncoder::Render(const TemplateConversation& conversation,
                                                                       std::size_t count, bool begins_answer) {
  jinja::List messages;
  messages.reserve(count);
  for (std::size_t i = 0; i < count; ++i) messages.push_back(conversation.messages[i].value);
  auto text = form_.Render(conversation.variables, std::move(messages), conversation.tools, begins_answer);
  if (!text) {
    refusal_ = text.error().message();
    return std::unexpected(BrokenReason::kTemplateError);
  }
  rendered_ += text->text.size();
  if (text->text.size() > kMaxDocumentBytes || rendered_ > kMaxRenderedBytes) {
    return std::unexpected(BrokenReason::kTooLong);
  }
  return *std::move(text);
}

std::expected<TemplateEncoder::Spans, BrokenReason> TemplateEncoder::MarkedAnswers(
    const TemplateConversation& conversation, const jinja::MarkedText& whole) const {
  std::vector<bool> trained;
  for (const TemplateMessage& message : conversation.messages) {
    if (message.answers) trained.push_back(message.trained);
  }
  if (std::ranges::all_of(trained, std::identity())) return whole.generated;
  if (trained.size() != whole.generated.size()) return std::unexpected(BrokenReason::kUnmarkedAnswer);
  Spans spans;
  for (std::size_t i = 0; i < trained.size(); ++i) {
    if (trained[i]) spans.push_back(whole.generated[i]);
  }
  return spans;
}

std::expected<TemplateEncoder::Spans, BrokenReason> TemplateEncoder::FindAnswers(
    const TemplateConversation& conversation, std::string_view whole) {
  const auto& messages = conversation.messages;
  const auto answers = static_cast<std::uint64_t>(std::ranges::count_if(messages, &TemplateMessage::trained));
  if (answers * messages.size() > kMaxMessageVisits) return std::unexpected(BrokenReason::kTooLong);
  Spans spans;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].trained) continue;
    const auto begin = FindBegin(conversation, i, whole);
    if (!begin) return std::unexpected(begin.error());
    const auto end = FindEnd(conversation, i, whole, *begin);
    if (!end) return std::unexpected(end.error());
    // An answer that is also a part of another one was found at the wrong place.
    if (!spans.empty() && *begin < spans.back().end) return std::unexpected(BrokenReason::kUnmarkedAnswer);
    if (*begin < *end) spans.push_back({*begin, *end});
  }
  return spans;
}

/// An answer begins behind the text that asks for it. Where the template asks in another way than it writes the answer
/// (DeepSeek-R1 asks with "<think>"), the answer begins behind the last line or special token that both share.
std::expected<std::size_t, BrokenReason> TemplateEncoder::FindBegin(const TemplateConversation& conversation,
                                                                    std::size_t at, std::string_view whole) {
  const auto asked = Render(conversation, at, true);
  if (!asked) return std::unexpected(asked.error());
  if (whole.starts_with(asked->text)) return asked->text.size();
  const auto before = Render(conversation, at, false);
  if (!before) return std::unexpected(before.error());
  if (!whole.starts_with(before->text) || !asked->text.starts_with(before->text)) {
    return std::unexpected(BrokenReason::kUnmarkedAnswer);
  }
  const std::string_view asking = std::string_view(asked->text).substr(before->text.size());
  const std::string_view common = asking.substr(0, CommonPrefix(asking, whole.substr(before->text.size())));
  std::size_t cut = common.rfind('\n') + 1;  // 0 without one
  for (std::size_t end = common.size(); end > cut; --end) {
    if (form_.specials().EndOf(common.substr(0, end)) > 0) cut = end;
  }
  // Behind the cut, both may begin with a tag. Other text may name the role.
  const std::string_view rest = common.substr(cut);
  if (cut > 0 && (rest.empty() || rest.front() == '<' || rest.front() == '[')) return before->text.size() + cut;
  return std::unexpected(BrokenReason::kUnmarkedAnswer);
}

/// An answer ends with the text of the messages up to it. Where the template leaves out a part of an earlier answer
/// (Qwen3 its reasoning), the rest of the answer follows its beginning, up to the token that ends the turn.
std::expected<std::size_t, BrokenReason> TemplateEncoder::FindEnd(const TemplateConversation& conversation,
                                                                  std::size_t at, std::string_view whole,
                                                                  std::size_t begin) {
  const auto answered = Render(conversation, at + 1, false);
  if (!answered) return std::unexpected(answered.error());
  const std::string_view text = answered->text;
  if (text.size() < begin || text.substr(0, begin) != whole.substr(0, begin)) {
    return std::unexpected(BrokenReason::kUnmarkedAnswer);
  }
  std::string_view answer = text.substr(begin);
  if (whole.substr(begin).starts_with(answer)) return begin + TurnBytes(answer);
  answer = whole.substr(begin, Overlap(answer, whole.substr(begin)));
  const std::size_t turn = TurnBytes(answer);
  if (form_.specials().EndOf(answer.substr(0, turn)) == 0) return std::unexpected(BrokenReason::kUnmarkedAnswer);
  return begin + turn;
}

std::size_t TemplateEncoder::TurnBytes(std::string_view answer) const {
  const std::size_t last = answer.find_last_not_of(" \t\r\n");
  if (last == answer.npos || form_.specials().EndOf(answer.substr(0, last + 1)) == 0) return answer.size();
  return last + 1;
}

Status TemplateEncoder::Tokenize(std::string_view text, EncodedDocument& document) {
  extents_.clear();
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t stop = std::min(text.find(tokenizer::kSpecialBreak, begin), text.size());
    const std::string_view stretch = text.substr(begin, stop - begin);
    const std::size_t first = document.ids.size();
    MR_TRY(form_.tokenizer().EncodeWithSpecials(stretch, document.ids));
    MR_TRY(extents_of_.Append(stretch, std::span(document.ids).subspan(first), begin, extents_));
    begin = stop + 1;
  }
  return {};
}

std::optional<BrokenReason> TemplateEncoder::Train(const Spans& spans, EncodedDocument& document) const {
  for (const auto& [begin, end] : spans) {
    const auto first = std::ranges::partition_point(extents_, [&](const TokenExtent& one) { return one.end <= begin; });
    const auto last = std::ranges::partition_point(extents_, [&](const TokenExtent& one) { return one.begin < end; });
    if (first >= last) continue;
    const bool unknown = (first->shared && first->begin < begin) || ((last - 1)->shared && (last - 1)->end > end);
    if (unknown) return BrokenReason::kUnmarkedAnswer;
    const TokenRange range{static_cast<std::uint32_t>(first - extents_.begin()),
                           static_cast<std::uint32_t>(last - extents_.begin())};
    if (!document.trained.empty() && document.trained.back().end >= range.begin) {
      document.trained.back().end = range.end;
    } else {
      document.trained.push_back(range);
    }
  }
  return std::nullopt;
}

}  // namespace millrace::data
