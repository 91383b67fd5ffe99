// Anthropic's Messages API, in terms of this server's conversations.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "millrace/base/json.h"
#include "millrace/serve/protocol/answer.h"
#include "millrace/serve/protocol/request.h"

namespace millrace::serve {

/// Parses the body of /v1/messages. Thinking of earlier answers is dropped, and members that change no text are taken.
Parsed<ChatRequest> ParseMessages(const Json& body, const RequestLimits& limits);

/// Returns an error as Anthropic's clients read it.
Json MessagesError(const ApiError& error);
/// Returns a whole answer.
Json MessagesAnswer(const AnswerHead& head, const AnswerPiece& piece, const Usage& usage);

/// Makes the events of one streamed answer. Each function returns server-sent events. One owner, no locking.
class MessageEvents {
 public:
  explicit MessageEvents(AnswerHead head) : head_(std::move(head)) {}

  std::string Begin(const Usage& usage) const;
  std::string Text(std::string_view text);
  /// A part of a call: its name, or more of its arguments.
  std::string Call(const ToolCallPart& part);
  std::string End(std::string_view finish, const Usage& usage);
  std::string Failure(const ApiError& error) const;

 private:
  /// Ends the block that is open, if there is one, and begins another.
  std::string Open(Json block);
  std::string Close();
  std::string Delta(Json delta) const;

  const AnswerHead head_;
  int blocks_ = 0;  ///< that were begun
  bool in_block_ = false, in_text_ = false;
};

}  // namespace millrace::serve
