// Reads the conversations of records as the values that a model's own chat template works on.
#pragma once

#include <expected>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/data/documents/model_template.h"
#include "millrace/data/records/broken_reason.h"
#include "millrace/jinja/python/value.h"

namespace millrace::data {

/// A message as a template sees it.
struct TemplateMessage {
  jinja::Value value;
  bool answers = false;  ///< of the assistant
  bool trained = false;  ///< an answer that the loss trains
};

/// A conversation and what a record says beside it.
struct TemplateConversation {
  std::vector<TemplateMessage> messages;
  jinja::Value tools = jinja::Value::OfNone();
  jinja::Dict variables;  ///< "chat_template_kwargs"
};

/// Reads the records that ConversationParser reads, with all members of their messages. What a record spells like a
/// special token is broken up. A record with a member that says something and that the template does not name, such as
/// "tools" or "reasoning_content", is broken by the reason that has the member's name. Keeps its buffers. One thread.
/// The template must outlive it.
class TemplateMessageParser {
 public:
  explicit TemplateMessageParser(const ModelTemplate& form);
  ~TemplateMessageParser();

  /// Reads "messages" or "conversations", or "prompt" and "completion", of which only the answers of "completion" are
  /// trained.
  std::expected<TemplateConversation, BrokenReason> Parse(std::string_view record);
  /// Reads "chosen" and "rejected", both behind "prompt" if it is a list. Answers with which both begin are not
  /// trained.
  std::expected<std::pair<TemplateConversation, TemplateConversation>, BrokenReason> ParsePair(std::string_view record);
  /// Returns the names of members of messages that the template does not name, at most 20.
  const std::set<std::string, std::less<>>& ignored_members() const;

  /// The members of a record that Parse and ParsePair look at, beside its lists of messages and those of
  /// ConversationParser::OtherMembers.
  static std::vector<std::string> OtherMembers();

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace millrace::data
