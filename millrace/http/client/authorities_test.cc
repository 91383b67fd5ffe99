#include "millrace/http/client/authorities.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "millrace/base/files/files.h"

namespace millrace::http {
namespace {

class AuthoritiesTest : public ::testing::Test {
 protected:
  void Write(const std::string& path) {
    std::filesystem::create_directories((root_.path() / path).parent_path());
    std::ofstream(root_.path() / path) << "certificates";
  }
  Authorities Find() {
    return Authorities::OfSystem(
        [this](const char* name) -> std::optional<std::string> {
          const auto at = environment_.find(name);
          return at == environment_.end() ? std::nullopt : std::optional(at->second);
        },
        root_.path());
  }

  TempDir root_ = *TempDir::Create();
  std::map<std::string, std::string> environment_;
};

TEST_F(AuthoritiesTest, KnowsTheFileOfEachDistribution) {
  EXPECT_TRUE(Find().empty());
  // Each is found before those that were written earlier.
  for (const char* file : {"etc/ssl/cert.pem", "etc/ssl/ca-bundle.pem", "etc/pki/tls/certs/ca-bundle.crt",
                           "etc/ssl/certs/ca-certificates.crt"}) {
    Write(file);
    EXPECT_EQ(Find().file, (root_.path() / file).string());
    EXPECT_EQ(Find().folder, "");
  }
}

TEST_F(AuthoritiesTest, VariablesReplaceTheSearch) {
  Write("etc/ssl/certs/ca-certificates.crt");
  environment_["SSL_CERT_DIR"] = "/own/certificates";
  EXPECT_EQ(Find().file, "") << "a folder alone";
  EXPECT_EQ(Find().folder, "/own/certificates");
  environment_["SSL_CERT_FILE"] = "/own/bundle.pem";
  EXPECT_EQ(Find().file, "/own/bundle.pem");
  environment_.erase("SSL_CERT_DIR");
  EXPECT_EQ(Find().folder, "");
}

}  // namespace
}  // namespace millrace::http
