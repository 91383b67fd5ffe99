// The settings of the hub: its address, and the token that identifies its users, as huggingface_hub finds them.
#pragma once

#include <functional>
#include <string>

#include "millrace/base/result.h"

namespace millrace::object::hf {

struct Settings {
  std::string endpoint = "https://huggingface.co";  ///< without a slash at its end
  std::string token;                                ///< empty: none. A secret: no message contains it

  /// "huggingface.co": for names that outlive the process.
  std::string Authority() const;
};

/// Returns the value of an environment variable, null if it is not set.
using GetEnv = std::function<const char*(const char*)>;

/// The endpoint is HF_ENDPOINT. The token is HF_TOKEN, or HUGGING_FACE_HUB_TOKEN, or the content of the file
/// HF_TOKEN_PATH, by default $HF_HOME/token, by default ~/.cache/huggingface/token (XDG_CACHE_HOME replaces ~/.cache).
/// Errors: kInvalidArgument if HF_ENDPOINT is no http(s) URL or the token cannot be one; those of reading the file,
/// unless it does not exist.
Result<Settings> LoadSettings(const GetEnv& getenv);

/// "https://host:port" of an absolute URL, in lower case: who gets a request.
std::string OriginOf(std::string_view url);

}  // namespace millrace::object::hf
