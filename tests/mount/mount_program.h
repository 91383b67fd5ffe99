// `millrace mount` as a user runs it, over an endpoint of its own: for tests.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/object/connection.h"
#include "millrace/s3d/server.h"

namespace millrace {

/// An S3 endpoint with one bucket, and mounts of it made by the real program. Destruction unmounts. One thread.
class MountProgram {
 public:
  /// kUnsupported, saying why, where nothing can be mounted.
  static Status Available();

  MountProgram();
  ~MountProgram();

  struct Ran {
    int status = -1;
    std::string output;  ///< standard output and error
  };
  /// Runs `millrace ARGUMENTS...` to its end.
  Ran Run(std::vector<std::string> arguments);
  /// What a program needs in its environment to reach the bucket.
  std::map<std::string, std::string> environment() const;
  /// How often a request is tried; 2 unless told otherwise, before Mount.
  void SetAttempts(int attempts) { attempts_ = attempts; }
  static std::filesystem::path program();
  /// Mounts the bucket on a fresh folder with these flags more; gives the folder.
  Ran Mount(std::vector<std::string> flags = {});
  Ran MountUrl(const std::string& url, std::vector<std::string> flags = {});
  Ran Umount();
  /// Runs a shell command in the mount point.
  Ran Shell(const std::string& command);

  std::filesystem::path point() const { return folder_.path() / "mnt"; }
  std::filesystem::path scratch() const { return folder_.path(); }
  /// Of the daemon; 0 when there is none.
  pid_t daemon() const;
  std::string log() const;

  s3d::Server& server() { return *server_; }
  /// Takes the endpoint away, and brings it back where it was.
  void StopServer();
  void StartServer();
  void SetFaults(std::string_view spec);
  object::Store& store() { return *store_; }
  std::string Object(const std::string& key);
  void Put(const std::string& key, std::string_view content);

 private:
  TempDir folder_;
  int attempts_ = 2;
  std::string endpoint_;
  std::unique_ptr<s3d::Server> server_;
  std::unique_ptr<object::Connection> connection_;
  std::shared_ptr<object::Store> store_;
};

}  // namespace millrace
