// A MinIO server for tests, when the machine has one.
#pragma once

#include <memory>
#include <string>

#include "millrace/base/files.h"
#include "millrace/base/result.h"
#include "millrace/base/subprocess.h"

namespace millrace::peers {

/// One server on a free loopback port with a folder of its own, gone with the object.
class Minio {
 public:
  /// kUnsupported when neither $MILLRACE_PEERS/bin nor PATH has a `minio`.
  static Result<std::unique_ptr<Minio>> Start(const std::string& access_key, const std::string& secret_key);

  const std::string& url() const { return url_; }

 private:
  Minio(TempDir folder, Subprocess process, std::string url)
      : folder_(std::move(folder)), process_(std::move(process)), url_(std::move(url)) {}
  TempDir folder_;
  Subprocess process_;
  std::string url_;
};

}  // namespace millrace::peers
