#include "millrace/jobs/kubernetes/cluster_access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <map>

namespace millrace::jobs {
namespace {

using ::testing::HasSubstr;

class ClusterAccessTest : public testing::Test {
 protected:
  /// Returns the access that a kubeconfig gives. `user` has the members of its user.
  Result<ClusterAccess> Find(const std::string& user, const std::string& cluster = "",
                             const std::string& context = "") {
    const std::filesystem::path path = folder_.path() / "config";
    std::ofstream(path) << fmt::format(R"(apiVersion: v1
kind: Config
current-context: first
contexts:
- {{name: first, context: {{cluster: c, user: u, namespace: team}}}}
- {{name: second, context: {{cluster: c, user: nobody}}}}
clusters:
- name: c
  cluster: {{server: "https://k8s.example:6443/"{}}}
users:
- name: u
  user: {}
)",
                                       cluster, user);
    env_["KUBECONFIG"] = path;
    return FindCluster(context, [this](const char* name) -> std::optional<std::string> {
      const auto found = env_.find(name);
      return found == env_.end() ? std::nullopt : std::optional(found->second);
    });
  }
  const TempDir folder_ = *TempDir::Create();
  std::map<std::string, std::string> env_;
};

TEST_F(ClusterAccessTest, ATokenAndAnAuthority) {
  const auto access = Find("{token: abc}", ", certificate-authority-data: aGVsbG8=");
  ASSERT_TRUE(access) << access.error().ToString();
  EXPECT_EQ(access->name, "first");
  EXPECT_EQ(access->server, "https://k8s.example:6443");
  EXPECT_EQ(access->space, "team");
  EXPECT_EQ(access->token, "abc");
  EXPECT_TRUE(access->verify_tls);
  EXPECT_EQ(*ReadFile(access->ca_file), "hello");
}

TEST_F(ClusterAccessTest, CertificatesAreFilesThatOnlyTheUserReads) {
  const auto access = Find("{client-certificate: cert.pem, client-key-data: aGVsbG8=}");
  ASSERT_TRUE(access) << access.error().ToString();
  EXPECT_EQ(access->client_certificate_file, folder_.path() / "cert.pem");
  EXPECT_EQ(*ReadFile(access->client_key_file), "hello");
  struct stat info{};
  ASSERT_EQ(::stat(access->client_key_file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0600u);
}

TEST_F(ClusterAccessTest, ACredentialPlugInIsAsked) {
  const std::filesystem::path plugin = folder_.path() / "plugin";
  std::ofstream(plugin) << "#!/bin/sh\n"
                           "echo \"{\\\"status\\\": {\\\"token\\\": \\\"$1-$WORD\\\"}}\"\n";
  std::filesystem::permissions(plugin, std::filesystem::perms::owner_all);
  const std::string exec =
      "{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, args: [given], env: [{name: WORD, "
      "value: "
      "w}]}}";
  const auto access = Find(exec);
  ASSERT_TRUE(access) << access.error().ToString();
  EXPECT_EQ(access->token, "given-w");
  std::ofstream(plugin) << "#!/bin/sh\nexit 3\n";
  const auto failed = Find(exec);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), Code::kPermissionDenied);
  EXPECT_THAT(failed.error().ToString(), HasSubstr("plugin"));
}

TEST_F(ClusterAccessTest, WhatIsMissingIsNamed) {
  EXPECT_THAT(Find("{token: abc}", "", "third").error().ToString(), HasSubstr("\"third\" among its contexts"));
  EXPECT_THAT(Find("{token: abc}", "", "second").error().ToString(), HasSubstr("\"nobody\" among its users"));
  EXPECT_THAT(Find("{username: me, password: p}").error().ToString(), HasSubstr("username"));
  env_.clear();
  const auto nowhere = FindCluster("", [](const char*) { return std::optional<std::string>(); });
  EXPECT_EQ(nowhere.error().code(), Code::kNotFound);
  EXPECT_THAT(nowhere.error().ToString(), HasSubstr("KUBECONFIG"));
}

TEST_F(ClusterAccessTest, TheFirstOfSeveralFilesWins) {
  std::ofstream(folder_.path() / "other") << "current-context: second\nusers: [{name: nobody, user: {token: other}}]\n";
  ASSERT_TRUE(Find("{token: abc}"));
  const std::string files = fmt::format("{0}/absent:{0}/other:{0}/config", folder_.path().string());
  const auto access = FindCluster("", [&](const char* name) {
    return std::string_view(name) == "KUBECONFIG" ? std::optional(files) : std::nullopt;
  });
  ASSERT_TRUE(access) << access.error().ToString();
  EXPECT_EQ(access->name, "second");
  EXPECT_EQ(access->token, "other");
  EXPECT_EQ(access->space, "default");
}

}  // namespace
}  // namespace millrace::jobs
