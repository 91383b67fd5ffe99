// The fixture of tests that run the real program: an S3 endpoint in this process and files on disk.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/s3d/server.h"
#include "tests/support/program.h"

namespace millrace {

/// Has an endpoint with the bucket "bucket", and a folder that the program runs in.
class ObjectFixture : public testing::Test {
 protected:
  void SetUp() override {
    if (!program_.available()) GTEST_SKIP() << "MILLRACE_BIN does not say where the program is";
    auto server = s3d::Server::Start(
        {.root = folder_.path() / "s3d", .access_key = "key", .secret_key = "secret-of-the-test", .sync = false});
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = *std::move(server);
    ASSERT_TRUE(server_->CreateBucket("bucket"));
    program_.env().insert({{"AWS_ENDPOINT_URL", server_->endpoint()},
                           {"AWS_ACCESS_KEY_ID", "key"},
                           {"AWS_SECRET_ACCESS_KEY", "secret-of-the-test"},
                           {"AWS_REGION", "us-east-1"}});
  }

  const std::filesystem::path& work() const { return program_.folder(); }
  testing_support::Ran Millrace(std::vector<std::string> arguments, const std::map<std::string, std::string>& env = {},
                                std::string_view input = "") {
    return program_.Run(std::move(arguments), env, input);
  }
  void WriteLocal(const std::string& name, std::string_view content) { program_.Write(name, content); }
  std::string Local(const std::string& name) { return program_.Read(name); }
  std::vector<std::string> LocalFiles(const std::string& beneath) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(work() / beneath)) {
      if (entry.is_regular_file()) names.push_back(std::filesystem::relative(entry.path(), work() / beneath).string());
    }
    return names;
  }
  std::vector<std::string> Keys(const std::string& url) {
    std::vector<std::string> keys;
    for (const Json& object : Millrace({"ls", "-r", "--json", url}).objects()) keys.push_back(object.value("key", "?"));
    return keys;
  }

  TempDir folder_ = std::move(*TempDir::Create());
  testing_support::Program program_;
  std::unique_ptr<s3d::Server> server_;
};

}  // namespace millrace
