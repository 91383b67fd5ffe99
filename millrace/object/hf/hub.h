// Hugging Face's hub as a place to read from: the entry point of this module.
#pragma once

#include <memory>
#include <string>

#include "millrace/object/connect_options.h"
#include "millrace/object/store.h"

namespace millrace::object::hf {

/// One hub, used with one token. Its stores share connections and the budget for retries. Thread-safe. It may be
/// destroyed before its stores, which keep alive what they share. No completion may destroy it or its stores.
class Hub {
 public:
  /// Reads the environment and the token's file (settings.h), but sends nothing. Ignores the options about S3. Uses
  /// AWS_MAX_ATTEMPTS. Errors: those of LoadSettings().
  static Result<std::unique_ptr<Hub>> Open(const ConnectOptions& options);
  ~Hub();

  /// Opens the repository of a URL (Url::bucket). Sends nothing. The first call of the store asks which commit the
  /// revision is, and fails if there is no such repository or revision. From then on, the store reads that commit.
  std::shared_ptr<Store> OpenRepository(const std::string& bucket);
  /// Returns the text of the same repository at the commit that its revision is now. Blocks on a request, unless the
  /// revision is a commit. Errors: those of reading there.
  Result<std::string> PinRevision(const std::string& bucket, Call call);
  /// Reads the token again. Requests that begin from now on use it. After an error they use the old one.
  Status ReloadToken();

  class Session;

 private:
  explicit Hub(std::shared_ptr<Session> session) : session_(std::move(session)) {}
  std::shared_ptr<Session> session_;
};

}  // namespace millrace::object::hf
