// The server of a model that a chat starts for itself.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/files/files.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/base/result.h"

namespace millrace::cli {

/// `millrace-serve` on a free port of loopback, with a key that only this process knows. The destructor stops it.
class ModelServer {
 public:
  /// Blocks until the model is loaded. Errors: kCancelled if Ctrl-C ended the wait; if the server ended, its last
  /// words, with the code of its exit status; those of starting a program.
  static Result<std::unique_ptr<ModelServer>> Start(const Context& context, const std::string& model,
                                                    const std::vector<std::string>& flags);
  ~ModelServer();
  ModelServer(const ModelServer&) = delete;
  ModelServer& operator=(const ModelServer&) = delete;

  const std::string& url() const { return url_; }
  const std::string& key() const { return key_; }
  /// Returns how the server ended and its last words; "" while it runs.
  std::string Ended();

 private:
  ModelServer(TempDir folder, std::string key, Subprocess process)
      : folder_(std::move(folder)), key_(std::move(key)), process_(std::move(process)) {}

  TempDir folder_;
  std::string key_, url_;
  Subprocess process_;
};

}  // namespace millrace::cli
