// Credentials from the metadata services of containers and machines.
#include "millrace/base/text.h"
#include "millrace/object/s3/credentials/credential_sources.h"

namespace millrace::object::s3 {
namespace {

class ContainerSource final : public CredentialSource {
 public:
  ContainerSource(ContainerService service, const Environment& environment)
      : service_(std::move(service)), environment_(environment) {}

  Result<Credentials> Fetch(std::stop_token stop) override {
    http::Request request{.url = service_.url};
    std::string token = service_.token;
    // Read each time, because the owner of the file replaces the token before it expires.
    if (!service_.token_file.empty()) token = std::string(Trim(MR_TRY(environment_.read_file(service_.token_file))));
    if (token.find_first_of("\r\n") != token.npos) {
      return Fail(Code::kInvalidArgument, "the authorization token for {} has more than one line; it must be one line",
                  Describe());
    }
    if (!token.empty()) request.headers.Set("Authorization", token);
    std::string answer = MR_TRY(AskForText(environment_, request, stop, Describe()));
    return ParseJsonCredentials(answer, Describe(), "Token");
  }
  std::string Describe() const override { return "the container's metadata service"; }

 private:
  const ContainerService service_;
  const Environment environment_;
};

/// Version 2 of the protocol requests a session token first. Machines and proxies with version 1 only refuse that
/// request (403, 404, 405) or never answer it. Then the source uses version 1, unless that is forbidden.
class InstanceSource final : public CredentialSource {
 public:
  InstanceSource(InstanceService service, const Environment& environment)
      : service_(std::move(service)), environment_(environment) {}

  Result<Credentials> Fetch(std::stop_token stop) override {
    std::string token = MR_TRY(SessionToken(stop));
    const std::string path = "/latest/meta-data/iam/security-credentials/";
    std::string role = MR_TRY(Get(path, token, stop));
    std::string_view first = Trim(Split(role, '\n')[0]);
    if (first.empty()) return Fail(Code::kPermissionDenied, "this machine has no role; {}", NoCredentials().message());
    std::string answer = MR_TRY(Get(path + PercentEncode(first, false), token, stop));
    return ParseJsonCredentials(answer, Describe(), "Token");
  }
  std::string Describe() const override { return "the instance metadata service"; }

 private:
  /// Empty: the service has no sessions.
  Result<std::string> SessionToken(std::stop_token stop) {
    http::Request request{.method = "PUT", .url = service_.endpoint + "/latest/api/token"};
    request.headers.Set("X-aws-ec2-metadata-token-ttl-seconds", "21600");
    auto response = Ask(environment_, request, stop, Describe());
    if (response && response->status == 200) return std::string(Trim(response->body));
    if (!response && response.error().code() == Code::kCancelled) return Fail(response.error());
    bool knows_no_sessions = !response || response->status == 403 || response->status == 404 || response->status == 405;
    if (knows_no_sessions && service_.allow_version_1) return std::string();
    Error why = response ? AnswerError(*response, Describe()) : response.error();
    return Fail(why.WithCode(Code::kPermissionDenied).Context(NoCredentials().message()));
  }

  Result<std::string> Get(const std::string& path, const std::string& token, std::stop_token stop) {
    http::Request request{.url = service_.endpoint + path};
    if (!token.empty()) request.headers.Set("X-aws-ec2-metadata-token", token);
    auto text = AskForText(environment_, request, stop, Describe());
    if (text || text.error().code() == Code::kCancelled) return text;
    return Fail(text.error().WithCode(Code::kPermissionDenied).Context(NoCredentials().message()));
  }

  const InstanceService service_;
  const Environment environment_;
};

}  // namespace

std::unique_ptr<CredentialSource> NewContainerSource(ContainerService service, const Environment& environment) {
  return std::make_unique<ContainerSource>(std::move(service), environment);
}
std::unique_ptr<CredentialSource> NewInstanceSource(InstanceService service, const Environment& environment) {
  return std::make_unique<InstanceSource>(std::move(service), environment);
}

}  // namespace millrace::object::s3
