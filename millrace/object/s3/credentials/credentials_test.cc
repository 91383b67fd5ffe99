#include "millrace/object/s3/credentials/credentials.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <pwd.h>
#include <unistd.h>

#include <latch>
#include <map>

#include "millrace/object/s3/credentials/credential_cache.h"
#include "millrace/object/s3/credentials/settings.h"

namespace millrace::object::s3 {
namespace {

using ::testing::HasSubstr;

/// A world made of maps.
class World {
 public:
  std::map<std::string, std::string> env{{"HOME", "/home/u"}};
  std::map<std::string, std::string> files;
  std::map<std::string, std::string> programs;  ///< output by joined argv
  std::function<http::Response(const http::Request&)> server;
  std::vector<std::string> requested;
  FakeClock clock;

  Environment environment() {
    return {.getenv = [this](const char* name) -> std::optional<std::string> {
              auto found = env.find(name);
              return found == env.end() || found->second.empty() ? std::nullopt : std::optional(found->second);
            },
            .read_file = [this](const std::filesystem::path& path) -> Result<std::string> {
              auto found = files.find(path.string());
              if (found == files.end()) return Fail(Code::kNotFound, "{}: no such file", path.string());
              return found->second;
            },
            .run = [this](std::vector<std::string> argv) -> Result<std::string> {
              auto found = programs.find(fmt::format("{}", fmt::join(argv, "|")));
              if (found == programs.end()) return Fail(Code::kNotFound, "no such program");
              return found->second;
            },
            .fetch = [this](http::Request request, http::Call) -> Result<http::Response> {
              requested.push_back(request.method + " " + request.url);
              if (!server) return Fail(Code::kUnavailable, "no network");
              return server(request);
            },
            .clock = &clock};
  }
  Result<Settings> Resolve(ConnectOptions options = {}) {
    auto profiles = MR_TRY(Profiles::Load(environment()));
    return Settings::Resolve(options, profiles, environment());
  }
  Result<std::unique_ptr<CredentialSource>> Find(ConnectOptions options = {}) {
    auto profiles = MR_TRY(Profiles::Load(environment()));
    Settings settings = MR_TRY(Settings::Resolve(options, profiles, environment()));
    return FindCredentials(settings, !options.profile.empty(), profiles, environment());
  }
  /// "source: access key" or the error.
  std::string Who(ConnectOptions options = {}) {
    auto source = Find(options);
    if (!source) return source.error().ToString();
    auto credentials = (*source)->Fetch({});
    if (!credentials) return credentials.error().ToString();
    return (*source)->Describe() + ": " + credentials->access_key;
  }
  std::string& config() { return files["/home/u/.aws/config"]; }
  std::string& credentials() { return files["/home/u/.aws/credentials"]; }
};

std::string StsAnswer(std::string_view action, std::string_view key) {
  return fmt::format(
      "<{0}Response><{0}Result><Credentials><AccessKeyId>{1}</AccessKeyId><SecretAccessKey>s</SecretAccessKey>"
      "<SessionToken>t</SessionToken><Expiration>2026-01-31T12:00:00Z</Expiration></Credentials></{0}Result></"
      "{0}Response>",
      action, key);
}

TEST(SurroundingsTest, AHomeIsFoundWithoutTheEnvironment) {
  const char* set = std::getenv("HOME");
  const std::optional<std::string> before = set ? std::optional<std::string>(set) : std::nullopt;
  unsetenv("HOME");
  const passwd* entry = ::getpwuid(::geteuid());
  const auto home = Environment::System().getenv("HOME");
  if (before) setenv("HOME", before->c_str(), 1);
  if (!entry) GTEST_SKIP() << "this user is not in the user database";
  EXPECT_EQ(home, entry->pw_dir);
}

TEST(Credentials, TheEnvironmentComesFirst) {
  World world;
  world.env["AWS_ACCESS_KEY_ID"] = "ENV";
  world.env["AWS_SECRET_ACCESS_KEY"] = "s";
  world.credentials() = "[default]\naws_access_key_id = FILE\naws_secret_access_key = s\n";
  EXPECT_EQ(world.Who(), "environment: ENV");
  EXPECT_EQ(world.Who({.profile = "default"}), "profile default: FILE") << "unless a profile is asked for";
  EXPECT_EQ(world.Who({.no_sign_request = true}), "no signature: ");
  world.env["AWS_SECRET_ACCESS_KEY"] = "";
  EXPECT_THAT(world.Who(), HasSubstr("set both"));
}

TEST(Credentials, ProfilesOfBothFiles) {
  World world;
  world.config() =
      "# comment\n[profile a]\nregion = eu-west-1\naws_access_key_id = CONFIG # old\n"
      "aws_secret_access_key = s\n[sso-session x]\naws_access_key_id = NOT\n";
  EXPECT_EQ(world.Who({.profile = "a"}), "profile a: CONFIG");
  world.credentials() = "[a]\naws_access_key_id=CREDENTIALS\n";
  EXPECT_EQ(world.Who({.profile = "a"}), "profile a: CREDENTIALS") << "the credentials file wins";
  world.env["AWS_PROFILE"] = "a";
  EXPECT_EQ(world.Who(), "profile a: CREDENTIALS");
  world.env["AWS_PROFILE"] = "aa";
  EXPECT_THAT(world.Who(), HasSubstr("did you mean \"a\""));
  world.env["AWS_CONFIG_FILE"] = "~/elsewhere";
  world.files["/home/u/elsewhere"] = "[profile aa]\naws_access_key_id=E\naws_secret_access_key=s\n";
  EXPECT_EQ(world.Who(), "profile aa: E");
}

TEST(Credentials, BrokenFilesAreNamedWithTheirLine) {
  World world;
  world.config() = "[profile a]\nwhat is this\n";
  EXPECT_THAT(world.Who(), HasSubstr("/home/u/.aws/config:2: expected name = value"));
  world.config() = "[profile a\n";
  EXPECT_THAT(world.Who(), HasSubstr("/home/u/.aws/config:1: a section without"));
}

TEST(Credentials, RolesAreAssumedWithTheSourceProfile) {
  World world;
  world.config() =
      "[profile work]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = base\nexternal_id = x y\n"
      "region = eu-west-1\n";
  world.credentials() = "[base]\naws_access_key_id = BASE\naws_secret_access_key = s\n";
  world.server = [](const http::Request& request) {
    EXPECT_THAT(std::string(request.headers.Get("Authorization")),
                HasSubstr("Credential=BASE/20231114/eu-west-1/sts/"));
    EXPECT_THAT(std::string(AsText(request.body)),
                ::testing::AllOf(HasSubstr("Action=AssumeRole&"), HasSubstr("ExternalId=x%20y"),
                                 HasSubstr("RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr")));
    return http::Response{.status = 200, .body = StsAnswer("AssumeRole", "ROLE")};
  };
  auto source = world.Find({.profile = "work"});
  ASSERT_TRUE(source) << source.error().ToString();
  auto credentials = (*source)->Fetch({});
  ASSERT_TRUE(credentials) << credentials.error().ToString();
  EXPECT_EQ(credentials->access_key, "ROLE");
  EXPECT_EQ(credentials->session_token, "t");
  EXPECT_EQ(credentials->expires, *ParseIso8601("2026-01-31T12:00:00Z"));
  EXPECT_EQ(world.requested, std::vector<std::string>{"POST https://sts.eu-west-1.amazonaws.com/"});
}

TEST(Credentials, RolesOfRolesAndCircles) {
  World world;
  world.config() =
      "[profile a]\nrole_arn = A\nsource_profile = b\n[profile b]\nrole_arn = B\nsource_profile = c\n"
      "[profile c]\naws_access_key_id = C\naws_secret_access_key = s\n";
  world.server = [](const http::Request& request) {
    bool outer = AsText(request.body).find("RoleArn=A&") != std::string_view::npos;
    EXPECT_THAT(std::string(request.headers.Get("Authorization")),
                HasSubstr(outer ? "Credential=KB/" : "Credential=C/"));
    return http::Response{.status = 200, .body = StsAnswer("AssumeRole", outer ? "KA" : "KB")};
  };
  EXPECT_EQ(world.Who({.profile = "a"}), "role A: KA");
  world.config() =
      "[profile a]\nrole_arn = A\nsource_profile = b\n[profile b]\nrole_arn = B\nsource_profile = c\n"
      "[profile c]\nrole_arn = C\nsource_profile = b\n";
  EXPECT_THAT(world.Who({.profile = "a"}), HasSubstr("leads back to b"));
  world.config() = "[profile a]\nrole_arn = A\n";
  EXPECT_THAT(world.Who({.profile = "a"}), HasSubstr("needs either source_profile or credential_source"));
}

TEST(Credentials, WebIdentityReadsItsTokenEachTime) {
  World world;
  world.env["AWS_ROLE_ARN"] = "R";
  world.env["AWS_WEB_IDENTITY_TOKEN_FILE"] = "/token";
  world.env["AWS_ENDPOINT_URL_STS"] = "http://sts:1/";
  world.files["/token"] = "one\n";
  std::string token;
  world.server = [&](const http::Request& request) {
    EXPECT_FALSE(request.headers.Has("Authorization"));
    token = AsText(request.body);
    return http::Response{.status = 200, .body = StsAnswer("AssumeRoleWithWebIdentity", "WEB")};
  };
  auto source = world.Find();
  ASSERT_TRUE(source);
  EXPECT_EQ((*source)->Fetch({})->access_key, "WEB");
  EXPECT_THAT(token, HasSubstr("WebIdentityToken=one"));
  world.files["/token"] = "two";
  EXPECT_TRUE((*source)->Fetch({}));
  EXPECT_THAT(token, HasSubstr("WebIdentityToken=two"));
  EXPECT_EQ(world.requested[0], "POST http://sts:1/");
}

TEST(Credentials, AProcessPrintsThem) {
  World world;
  world.config() = "[default]\ncredential_process = /opt/get \"an arg\" it\\'s\n";
  world.programs["/opt/get|an arg|it's"] =
      R"({"Version":1,"AccessKeyId":"PROC","SecretAccessKey":"s","SessionToken":"t","Expiration":"2026-01-31T12:00:00Z"})";
  EXPECT_EQ(world.Who(), "credential_process: PROC");
  world.programs.begin()->second = "{}";
  EXPECT_THAT(world.Who(), HasSubstr("gave no AccessKeyId"));
}

TEST(Credentials, ContainersAreAskedWithTheirToken) {
  World world;
  world.env["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"] = "/v2/x";
  world.env["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = "/auth";
  world.files["/auth"] = "secret\n";
  world.server = [](const http::Request& request) {
    EXPECT_EQ(request.url, "http://169.254.170.2/v2/x");
    EXPECT_EQ(request.headers.Get("Authorization"), "secret");
    return http::Response{.status = 200, .body = R"({"AccessKeyId":"ECS","SecretAccessKey":"s","Token":"t"})"};
  };
  EXPECT_EQ(world.Who(), "the container's metadata service: ECS");
}

TEST(Credentials, MachinesAreAskedLastAndWithASession) {
  World world;
  world.server = [](const http::Request& request) {
    if (request.method == "PUT") return http::Response{.status = 200, .body = "session"};
    EXPECT_EQ(request.headers.Get("X-aws-ec2-metadata-token"), "session");
    if (request.url.ends_with("/")) return http::Response{.status = 200, .body = "my role\n"};
    return http::Response{
        .status = 200,
        .body = R"({"AccessKeyId":"EC2","SecretAccessKey":"s","Token":"t","Expiration":"2026-01-31T12:00:00Z"})"};
  };
  EXPECT_EQ(world.Who(), "the instance metadata service: EC2");
  EXPECT_EQ(world.requested.back(), "GET http://169.254.169.254/latest/meta-data/iam/security-credentials/my%20role");
  world.server = nullptr;
  EXPECT_THAT(world.Who(), HasSubstr("no AWS credentials found: set AWS_ACCESS_KEY_ID"));
  world.env["AWS_EC2_METADATA_DISABLED"] = "true";
  world.requested.clear();
  EXPECT_THAT(world.Who(), HasSubstr("no AWS credentials found"));
  EXPECT_TRUE(world.requested.empty());
}

TEST(Settings, OptionsWinOverTheEnvironmentWhichWinsOverTheProfile) {
  World world;
  auto region = [&](ConnectOptions options = {}) { return world.Resolve(options)->region; };
  EXPECT_EQ(region(), "us-east-1");
  world.config() =
      "[default]\nregion = eu-west-1\nendpoint_url = http://profile:1\nmax_attempts = 4\n"
      "s3 =\n  addressing_style = virtual\n";
  EXPECT_EQ(region(), "eu-west-1");
  EXPECT_EQ(world.Resolve()->authority, "profile:1");
  EXPECT_EQ(world.Resolve()->max_attempts, 4);
  EXPECT_FALSE(world.Resolve()->path_style);
  world.env["AWS_DEFAULT_REGION"] = "eu-west-2";
  EXPECT_EQ(region(), "eu-west-2");
  world.env["AWS_REGION"] = "eu-west-3";
  EXPECT_EQ(region(), "eu-west-3");
  EXPECT_EQ(region({.region = "eu-north-1"}), "eu-north-1");
  world.env["AWS_ENDPOINT_URL"] = "http://all:1";
  EXPECT_EQ(world.Resolve()->authority, "all:1");
  world.env["AWS_ENDPOINT_URL_S3"] = "http://s3:1";
  EXPECT_EQ(world.Resolve()->authority, "s3:1");
  EXPECT_EQ(world.Resolve({.endpoint_url = "http://option:1"})->authority, "option:1");
  world.env["AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"] = "true";
  EXPECT_EQ(world.Resolve()->authority, "s3.eu-west-3.amazonaws.com");
  world.env["AWS_MAX_ATTEMPTS"] = "many";
  EXPECT_EQ(world.Resolve().error().code(), Code::kInvalidArgument);
}

TEST(Settings, Endpoints) {
  World world;
  auto place = [&](ConnectOptions options, std::string_view bucket, std::string_view key) {
    return world.Resolve(std::move(options))->AddressOf(bucket, key, "us-east-1").Url("");
  };
  EXPECT_EQ(place({}, "data", "a b/c"), "https://data.s3.us-east-1.amazonaws.com/a%20b/c");
  EXPECT_EQ(place({}, "data.v1", "k"), "https://s3.us-east-1.amazonaws.com/data.v1/k") << "no certificate covers dots";
  EXPECT_EQ(place({}, "", ""), "https://s3.us-east-1.amazonaws.com/");
  EXPECT_EQ(place({}, "data", ""), "https://data.s3.us-east-1.amazonaws.com/");
  EXPECT_EQ(place({.endpoint_url = "HTTP://Host:9000/sub/"}, "data", "k"), "http://host:9000/sub/data/k");
  EXPECT_EQ(place({.endpoint_url = "https://host:443", .path_style = false}, "data", "k"), "https://data.host/k");
  EXPECT_EQ(world.Resolve({.region = "cn-north-1"})->authority, "s3.cn-north-1.amazonaws.com.cn");
  EXPECT_EQ(world.Resolve()->AddressOf("data", "", "eu-west-1").host, "data.s3.eu-west-1.amazonaws.com");
  EXPECT_TRUE(world.Resolve({.endpoint_url = "http://127.0.0.1:1"})->loopback);
  EXPECT_TRUE(world.Resolve({.endpoint_url = "http://[::1]:1"})->loopback);
  EXPECT_FALSE(world.Resolve({.endpoint_url = "http://10.0.0.1:1"})->loopback);
  EXPECT_FALSE(world.Resolve({.endpoint_url = "http://127.evil.com:1"})->loopback);
  EXPECT_FALSE(world.Resolve({.endpoint_url = "http://127.0.0.1.evil.com:1"})->loopback);
  for (const char* bad : {"host:9000", "ftp://host", "http://", "http://user@host", "http://host?x"}) {
    EXPECT_EQ(world.Resolve({.endpoint_url = bad}).error().code(), Code::kInvalidArgument) << bad;
  }
}

TEST(Settings, AccessPointsHaveHosts) {
  World world;
  const std::string arn = "arn:aws:s3:us-west-2:123456789012:accesspoint/team-a";
  auto place = [&](ConnectOptions options, std::string_view bucket) {
    return world.Resolve(std::move(options))->AddressOf(bucket, "k", "us-west-2").Url("");
  };
  EXPECT_EQ(place({}, arn), "https://team-a-123456789012.s3-accesspoint.us-west-2.amazonaws.com/k");
  EXPECT_EQ(place({}, "arn:aws-cn:s3:cn-north-1:123456789012:accesspoint/x-1"),
            "https://x-1-123456789012.s3-accesspoint.cn-north-1.amazonaws.com.cn/k");
  EXPECT_EQ(place({.endpoint_url = "https://accesspoint.vpce-1-2.s3.us-west-2.vpce.amazonaws.com"}, arn),
            "https://team-a-123456789012.accesspoint.vpce-1-2.s3.us-west-2.vpce.amazonaws.com/k");
  EXPECT_EQ(place({.endpoint_url = "http://localhost:9000"}, arn), "http://team-a-123456789012.localhost:9000/k");
  EXPECT_EQ(place({}, "team-a-hrzrlukc5m36ft7okagglf3gmw-s3alias"),
            "https://team-a-hrzrlukc5m36ft7okagglf3gmw-s3alias.s3.us-west-2.amazonaws.com/k");
  EXPECT_TRUE(world.Resolve({.endpoint_url = "http://localhost:9000"})->CheckBucket(arn));
  EXPECT_FALSE(world.Resolve({.endpoint_url = "http://127.0.0.1:9000"})->CheckBucket(arn));
  EXPECT_TRUE(world.Resolve({.endpoint_url = "http://127.0.0.1:9000"})->CheckBucket("bucket"));
}

TEST(Settings, OwnersOfBucketsAreAccounts) {
  World world;
  EXPECT_TRUE(world.Resolve({.expected_bucket_owner = "123456789012"}));
  EXPECT_FALSE(world.Resolve({.expected_bucket_owner = "me"}));
}

TEST(Settings, RedirectsStayWithinTheEndpoint) {
  World world;
  Settings own = *world.Resolve({.endpoint_url = "http://store.example:9000"});
  EXPECT_EQ(own.AddressOfRedirect("http://Store.example:9001/b/k?x=1")->Url("q"), "http://store.example:9001/b/k?q");
  EXPECT_EQ(own.AddressOfRedirect("http://b.store.example/k")->host, "b.store.example");
  for (const char* bad :
       {"https://store.example/", "http://evil.example/", "http://evilstore.example/", "//store.example/",
        "http://u@store.example/", "http://store.example\\@evil/", "http://store.example/a b", ""}) {
    EXPECT_FALSE(own.AddressOfRedirect(bad)) << bad;
  }
  Settings aws = *world.Resolve();
  EXPECT_TRUE(aws.AddressOfRedirect("https://b.s3-us-west-2.amazonaws.com/k"));
  EXPECT_FALSE(aws.AddressOfRedirect("https://b.s3.amazonaws.com.evil.example/k"));
}

/// Yields K1, K2, … each good for an hour, or fails while told to.
class CountingSource final : public CredentialSource {
 public:
  explicit CountingSource(Clock& clock) : clock_(clock) {}
  Result<Credentials> Fetch(std::stop_token) override {
    if (broken) return Fail(Code::kUnavailable, "metadata service is down");
    return Credentials{.access_key = fmt::format("K{}", ++fetched),
                       .secret_key = "s",
                       .expires = clock_.Wall() + std::chrono::hours(1)};
  }
  std::string Describe() const override { return "test"; }
  std::atomic<bool> broken = false;
  std::atomic<int> fetched = 0;

 private:
  Clock& clock_;
};

TEST(CredentialCache, RenewsBeforeTheEndAndServesTheOldOnesMeanwhile) {
  FakeClock clock;
  auto owned = std::make_unique<CountingSource>(clock);
  CountingSource& source = *owned;
  CredentialCache cache(std::move(owned), clock, {});
  EXPECT_EQ(cache.GetNow()->access_key, "K1");
  clock.Advance(std::chrono::minutes(50));
  EXPECT_EQ(cache.GetNow()->access_key, "K1");
  EXPECT_EQ(source.fetched, 1);
  clock.Advance(std::chrono::minutes(6));
  std::string key = cache.GetNow()->access_key;
  EXPECT_EQ(key, "K1") << "within five minutes of the end nobody waits";
  while (key == "K1") key = cache.GetNow()->access_key;
  EXPECT_EQ(key, "K2");
  clock.Advance(std::chrono::hours(2));
  EXPECT_EQ(cache.GetNow()->access_key, "K3") << "expired ones are never given";
}

TEST(CredentialCache, AFailureIsReportedAndNotRemembered) {
  FakeClock clock;
  auto owned = std::make_unique<CountingSource>(clock);
  CountingSource& source = *owned;
  CredentialCache cache(std::move(owned), clock, {});
  source.broken = true;
  EXPECT_EQ(cache.GetNow().error().code(), Code::kUnavailable);
  source.broken = false;
  EXPECT_EQ(cache.GetNow()->access_key, "K1");
}

TEST(CredentialCache, ExpiredAccordingToTheServer) {
  FakeClock clock;
  CredentialCache cache(std::make_unique<CountingSource>(clock), clock, {});
  EXPECT_EQ(cache.GetNow()->access_key, "K1");
  EXPECT_TRUE(cache.Renew("K1", ""));
  EXPECT_EQ(cache.GetNow()->access_key, "K2");
  EXPECT_TRUE(cache.Renew("K1", "")) << "of ours no longer";
  EXPECT_EQ(cache.GetNow()->access_key, "K2");
}

TEST(CredentialCache, ManyWaitForOneFetch) {
  FakeClock clock;
  auto owned = std::make_unique<CountingSource>(clock);
  CountingSource& source = *owned;
  std::latch given(50);
  CredentialCache cache(std::move(owned), clock, {});
  for (int i = 0; i < 50; ++i) {
    cache.Get([&](Result<Credentials> credentials) {
      EXPECT_EQ(credentials->access_key, "K1");
      given.count_down();
    });
  }
  given.wait();
  EXPECT_EQ(source.fetched, 1);
}

/// Never changes.
class FixedSource final : public CredentialSource {
 public:
  explicit FixedSource(std::string key) : key_(std::move(key)) {}
  Result<Credentials> Fetch(std::stop_token) override { return Credentials{.access_key = key_, .secret_key = "s"}; }
  std::string Describe() const override { return "fixed"; }
  bool fixed() const override { return true; }

 private:
  const std::string key_;
};

TEST(Credentials, KeysOfAFileAreReadAgain) {
  World world;
  world.config() = "[default]\naws_access_key_id = A\naws_secret_access_key = s\n";
  auto source = world.Find();
  ASSERT_TRUE(source) << source.error().ToString();
  FakeClock clock;
  CredentialCache cache(*std::move(source), clock, {});
  EXPECT_EQ(cache.GetNow()->access_key, "A");
  world.config() = "[default]\naws_access_key_id = B\naws_secret_access_key = s\n";
  EXPECT_TRUE(cache.Renew("A", ""));
  EXPECT_EQ(cache.GetNow()->access_key, "B");
}

TEST(Settings, AServicesSectionNamesTheEndpoint) {
  World world;
  world.config() =
      "[default]\nservices = mine\nendpoint_url = http://profile:1\n[services mine]\ns3 =\n"
      "  endpoint_url = http://services:2\n";
  EXPECT_EQ(world.Resolve()->authority, "services:2");
  world.config() = "[default]\nservices = other\n";
  EXPECT_THAT(world.Resolve().error().ToString(), HasSubstr("no [services other]"));
}

TEST(Settings, ChecksumsAreLeftOutWhereTheSdksLeaveThemOut) {
  World world;
  EXPECT_FALSE(world.Resolve()->checksums_when_required);
  world.env["AWS_REQUEST_CHECKSUM_CALCULATION"] = "WHEN_REQUIRED";
  world.config() = "[default]\nresponse_checksum_validation = when_required\n";
  EXPECT_TRUE(world.Resolve()->checksums_when_required);
  EXPECT_TRUE(world.Resolve()->validation_when_required);
  world.env["AWS_REQUEST_CHECKSUM_CALCULATION"] = "never";
  EXPECT_THAT(world.Resolve().error().ToString(), HasSubstr("AWS_REQUEST_CHECKSUM_CALCULATION"));
}

TEST(CredentialCache, AnotherSourceTakesOver) {
  FakeClock clock;
  CredentialCache cache(std::make_unique<FixedSource>("first"), clock, {});
  EXPECT_EQ(cache.GetNow()->access_key, "first");
  cache.Replace(std::make_unique<FixedSource>("second"));
  EXPECT_EQ(cache.GetNow()->access_key, "second");
  auto owned = std::make_unique<CountingSource>(clock);
  owned->broken = true;
  cache.Replace(std::move(owned));
  EXPECT_EQ(cache.GetNow()->access_key, "second") << "until the new one has some";
  cache.Replace(std::make_unique<CountingSource>(clock));
  std::string key = "second";
  while (key == "second") key = cache.GetNow()->access_key;
  EXPECT_EQ(key, "K1");
  cache.Replace(std::make_unique<FixedSource>("last"));
  EXPECT_EQ(cache.GetNow()->access_key, "last");
}

TEST(SplitCommand, KnowsQuotes) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(*SplitCommand("a  b\tc"), Words({"a", "b", "c"}));
  EXPECT_EQ(*SplitCommand("'a b'\"c\\\"d\" e\\ f ''"), Words({"a bc\"d", "e f", ""}));
  EXPECT_FALSE(SplitCommand("a 'b"));
  EXPECT_FALSE(SplitCommand("  "));
}

}  // namespace
}  // namespace millrace::object::s3
