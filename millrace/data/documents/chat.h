// Conversations: how records hold them, and how the chat templates of models write them.
#pragma once

#include <array>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/data/documents/document_script.h"
#include "millrace/data/documents/turn_markers.h"
#include "millrace/data/records/record_template.h"

namespace millrace::data {

struct Message {
  std::string_view role;  ///< "user", "assistant", "system", or what the record says
  std::string_view content;
  bool trained = false;  ///< the loss trains it: an answer of the assistant
};

/// Two conversations that begin alike. Only the answers in which they differ are trained.
struct ConversationPair {
  std::span<const Message> chosen, rejected;
};

/// Reads the conversations of a record: lists of {role, content} or {from, value}. Other names of roles ("human",
/// "gpt") become those of Message. A content is a text, or a list of parts of type "text", which are joined. With a
/// "weight" of 0, or "train": false, an answer is not trained. A record with a member that no layout writes, such as
/// "tools" or a message's "tool_calls", is broken by the reason that has the member's name, unless its value is empty.
/// Keeps its buffers. One thread.
class ConversationParser {
 public:
  ConversationParser();
  ~ConversationParser();
  /// Returns the messages of the list "messages" or "conversations", or else of "prompt" and then "completion", of
  /// which only the answers of "completion" are trained. Valid until the next call.
  std::expected<std::span<const Message>, BrokenReason> Parse(std::string_view record);
  /// Returns the conversations of the lists "chosen" and "rejected", both behind the list "prompt" if there is one.
  /// Valid until the next call.
  std::expected<ConversationPair, BrokenReason> ParsePair(std::string_view record);
  /// Returns the names of members of messages that were not empty and not read so far, at most 20.
  const std::set<std::string, std::less<>>& ignored_members() const;

  /// The members of a record beside its lists of messages that Parse and ParsePair look at.
  static std::vector<std::string> OtherMembers();

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

/// The special tokens of templates: what begins a role, what ends the role or the turn, and for Llama 3 what ends the
/// turn.
inline constexpr std::array<std::string_view, 3> kLlama3Tokens = {"<|start_header_id|>", "<|end_header_id|>",
                                                                  "<|eot_id|>"};
inline constexpr std::array<std::string_view, 2> kChatmlTokens = {"<|im_start|>", "<|im_end|>"};
inline constexpr std::array<std::string_view, 2> kGemmaTokens = {"<start_of_turn>", "<end_of_turn>"};

/// Writes a conversation as the chat template published with the models does. Marks trained messages, with the token
/// that ends the turn. Text of the record never becomes a special token. Returns kNotChat if the
/// template does not render a role.
using ChatLayout = std::optional<BrokenReason>(std::span<const Message> messages, DocumentScript& script);
ChatLayout WriteLlama2, WriteLlama3, WriteChatml, WriteZephyr, WriteGemma;

/// Writes one text with turns. Trains the text from each response marker to the next instruction marker, and the end of
/// the document if the text ends in a response.
std::optional<BrokenReason> WriteTurns(std::string_view text, const TurnMarkers& markers, DocumentScript& script);

/// Returns `text` without the white space at both ends, as Python's str.strip and Jinja's trim define it.
std::string_view StripSpace(std::string_view text);

}  // namespace millrace::data
