// OpenAI's Responses API, in terms of this server's conversations.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "millrace/base/json.h"
#include "millrace/serve/protocol/answer.h"
#include "millrace/serve/protocol/request.h"

namespace millrace::serve {

/// Parses the body of /v1/responses. `before`: messages of the conversation that "previous_response_id" names, which
/// stand between the instructions and the input. Reasoning of earlier answers is dropped. ChatRequest::echoed has the
/// members that the answer repeats.
Parsed<ChatRequest> ParseResponses(const Json& body, const RequestLimits& limits, const Json& before = Json::array());
/// Returns the message that the output of a response is in a conversation.
Json ResponseMessage(const Json& output);

/// Returns a whole answer. `echoed`: of the request.
Json ResponseAnswer(const AnswerHead& head, const Json& echoed, const AnswerPiece& piece, const Usage& usage);

/// Makes the events of one streamed answer, and the answer with them. Each function that returns text returns
/// server-sent events. One owner, no locking.
class ResponseEvents {
 public:
  /// `echoed`: of the request.
  ResponseEvents(AnswerHead head, Json echoed) : head_(std::move(head)), echoed_(std::move(echoed)) {}

  std::string Begin(const Usage& usage);
  std::string Text(std::string_view text);
  /// A part of a call: its name, or more of its arguments.
  std::string Call(const ToolCallPart& part);
  std::string End(std::string_view finish, const Usage& usage);
  std::string Failure(const ApiError& error);

  /// Returns the response as it is now. `status`: "in_progress", "completed" or "incomplete".
  Json Response(std::string_view status, const Usage& usage) const;

 private:
  std::string Event(const char* type, Json data);
  /// Ends the item that is open, if there is one, and adds another.
  std::string Open(Json item);
  std::string Close();
  bool in_text() const { return open_ && output_.back()["type"] == "message"; }
  Json Place() const;  ///< of the last item, as events name it

  const AnswerHead head_;
  const Json echoed_;
  Json output_ = Json::array();
  bool open_ = false;  ///< the last item grows
  int events_ = 0;
};

}  // namespace millrace::serve
