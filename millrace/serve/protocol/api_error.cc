#include "millrace/serve/protocol/api_error.h"

namespace millrace::serve {
namespace {

Json OrNull(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

}  // namespace

Json ApiError::ToJson() const {
  return {{"error", {{"message", message}, {"type", type}, {"param", OrNull(param)}, {"code", OrNull(code)}}}};
}

ApiError ToApiError(const Error& error) {
  ApiError api{
      .status = ToHttpStatus(error.code()), .message = error.ToString(), .code = std::string(CodeName(error.code()))};
  if (error.code() == Code::kThrottled) {
    api.status = 429;
    api.type = "rate_limit_error";
  } else if (api.status >= 500) {
    api.type = "server_error";
  }
  return api;
}

}  // namespace millrace::serve
