// Errors of the protocol.
#pragma once

#include <expected>
#include <string>

#include "millrace/base/json.h"
#include "millrace/base/result.h"

namespace millrace::serve {

/// An error as OpenAI's clients expect it: {"error": {message, type, param, code}} with an HTTP status.
struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;  ///< empty: null
  std::string code;   ///< empty: null
  Json ToJson() const;
};
ApiError ToApiError(const Error& error);

template <class T>
using Parsed = std::expected<T, ApiError>;

}  // namespace millrace::serve
