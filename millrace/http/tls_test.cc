#include "millrace/http/tls.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <fstream>

#include "millrace/base/files/files.h"
#include "millrace/http/client/client.h"
#include "millrace/http/server/server.h"

namespace millrace::http {
namespace {

using ::testing::HasSubstr;

std::string TextOf(BIO* bio) {
  char* bytes = nullptr;
  const auto size = BIO_get_mem_data(bio, &bytes);
  std::string text(bytes, static_cast<std::size_t>(size));
  BIO_free(bio);
  return text;
}

struct Pem {
  std::string certificate, key;
};

/// Makes a certificate of 127.0.0.1 that its own key signs.
Pem MakePem() {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_NAME* name = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("mill"), -1, -1, 0);
  X509_set_issuer_name(certificate, name);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1");
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
  X509_sign(certificate, key, EVP_sha256());
  BIO *certificate_text = BIO_new(BIO_s_mem()), *key_text = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(certificate_text, certificate);
  PEM_write_bio_PrivateKey(key_text, key, nullptr, nullptr, 0, nullptr, nullptr);
  X509_free(certificate);
  EVP_PKEY_free(key);
  return {TextOf(certificate_text), TextOf(key_text)};
}

class TlsTest : public ::testing::Test {
 protected:
  void SetUp() override { Write(MakePem()); }
  std::filesystem::path File(const char* name) const { return folder_.path() / name; }
  void Write(const Pem& pem) {
    std::ofstream(File("cert.pem")) << pem.certificate;
    std::ofstream(File("key.pem")) << pem.key;
    chmod(File("key.pem").c_str(), 0600);
  }
  Result<std::shared_ptr<TlsIdentity>> Load() { return TlsIdentity::Load(File("cert.pem"), File("key.pem")); }
  void Serve(Handler handler) {
    identity_ = *Load();
    server_ = *Server::Start({.tls = identity_}, std::move(handler));
  }
  Result<Response> Ask(std::string path, std::string body = "", std::string scheme = "https") {
    Client client({.ca_bundle = File("cert.pem").string()});  // a client of its own reads the file anew
    Request request{.method = body.empty() ? "GET" : "POST",
                    .url = fmt::format("{}://{}{}", scheme, server_->address(), path)};
    request.body = AsBytes(body);
    return client.Send(std::move(request));
  }
  UniqueFd Connect() const {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(server_->port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return fd;
  }

  TempDir folder_ = *TempDir::Create();
  std::shared_ptr<TlsIdentity> identity_;
  std::unique_ptr<Server> server_;
};

void EchoAll(ServerRequest& request, ServerResponse& response) {
  auto body = request.ReadAllBody(16 * kMiB);
  (void)response.Send(200, {}, AsBytes(body ? *body : body.error().ToString()));
}

TEST_F(TlsTest, AnswersOverTls) {
  Serve(EchoAll);
  const std::string large(3 * kMiB, 'x');
  for (const std::string& body : {std::string("small"), large}) {
    const auto answer = Ask("/", body);
    ASSERT_TRUE(answer) << answer.error().ToString();
    EXPECT_TRUE(answer->body == body);
  }
  EXPECT_FALSE(Ask("/", "", "http")) << "nothing in the clear";
  Client stranger({});
  Request request{.url = fmt::format("https://{}/", server_->address())};
  EXPECT_FALSE(stranger.Send(std::move(request))) << "the client knows no such issuer";
}

TEST_F(TlsTest, SendsFilesAndStreams) {
  const std::string content(700'001, 'f');
  std::ofstream(File("file")) << content;
  Serve([&](ServerRequest& request, ServerResponse& response) {
    const UniqueFd file(open(File("file").c_str(), O_RDONLY | O_CLOEXEC));
    (void)response.Start(200, {},
                         request.path() == "/file" ? std::optional<std::uint64_t>(content.size() - 1) : std::nullopt);
    if (request.path() != "/file") (void)response.Write(AsBytes(std::string_view("begin ")));
    (void)response.WriteFile(file.get(), 1, content.size() - 1);
    (void)response.Finish();
  });
  EXPECT_TRUE(Ask("/file")->body == content.substr(1));
  EXPECT_TRUE(Ask("/stream")->body == "begin " + content.substr(1));
}

/// A token of a stream is a chunk: its size, its text and its end.
TEST_F(TlsTest, AChunkIsOneRecord) {
  constexpr int kTokens = 5;
  Serve([](ServerRequest&, ServerResponse& response) {
    (void)response.Start(200, {}, std::nullopt);
    for (int i = 0; i < kTokens; ++i) (void)response.Write(AsBytes(std::string_view("token")));
    (void)response.Finish();
  });
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  const UniqueFd fd = Connect();
  const std::shared_ptr<SSL> session(SSL_new(context.get()), SSL_free);
  int records = 0;
  SSL_set_msg_callback(session.get(), [](int sent, int, int type, const void* bytes, std::size_t, SSL*, void* count) {
    const bool has_data =
        type == SSL3_RT_INNER_CONTENT_TYPE && *static_cast<const char*>(bytes) == SSL3_RT_APPLICATION_DATA;
    if (sent == 0 && has_data) ++*static_cast<int*>(count);
  });
  SSL_set_msg_callback_arg(session.get(), &records);
  SSL_set_fd(session.get(), fd.get());
  ASSERT_EQ(SSL_connect(session.get()), 1);
  const std::string request = "GET / HTTP/1.1\r\nHost: mill\r\nConnection: close\r\n\r\n";
  ASSERT_EQ(SSL_write(session.get(), request.data(), static_cast<int>(request.size())),
            static_cast<int>(request.size()));
  std::string answer(4096, '\0');
  std::size_t length = 0;
  for (int got = 1; got > 0; length += static_cast<std::size_t>(std::max(got, 0))) {
    got = SSL_read(session.get(), answer.data() + length, static_cast<int>(answer.size() - length));
  }
  EXPECT_THAT(answer, HasSubstr("5\r\ntoken\r\n5\r\ntoken\r\n"));
  EXPECT_EQ(records, 1 + kTokens + 1) << "the head, the tokens, the end";
}

TEST_F(TlsTest, ACertificateCanBeReplaced) {
  Serve(EchoAll);
  EXPECT_TRUE(Ask("/"));
  const Pem next = MakePem();
  std::ofstream(File("cert.pem")) << next.certificate;
  EXPECT_FALSE(identity_->Reload()) << "the key is still that of the old certificate";
  Write(next);
  EXPECT_FALSE(Ask("/")) << "the client trusts the new certificate, the server still has the old one";
  ASSERT_TRUE(identity_->Reload());
  EXPECT_TRUE(Ask("/"));
}

TEST_F(TlsTest, RefusesFilesThatCannotServe) {
  EXPECT_TRUE(Load());
  chmod(File("key.pem").c_str(), 0644);
  EXPECT_EQ(Load().error().code(), Code::kPermissionDenied);
  const Pem pem = MakePem();
  std::ofstream(File("key.pem")) << pem.key;
  chmod(File("key.pem").c_str(), 0600);
  EXPECT_THAT(Load().error().ToString(), HasSubstr("is not that of the certificate"));
  std::ofstream(File("key.pem")) << "no key";
  EXPECT_THAT(Load().error().ToString(), HasSubstr("has no key in PEM"));
  std::ofstream(File("cert.pem")) << "no certificate";
  EXPECT_THAT(Load().error().ToString(), HasSubstr("no certificate"));
  std::filesystem::remove(File("cert.pem"));
  EXPECT_FALSE(Load());
  EXPECT_EQ(OpenTls({.certificate = File("cert.pem")}).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(*OpenTls({}), nullptr);
}

TEST_F(TlsTest, OldVersionsAreRefused) {
  Serve(EchoAll);
  const auto connects = [&](int version) {
    const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
    SSL_CTX_set_security_level(context.get(), 0);  // else the client itself refuses
    SSL_CTX_set_min_proto_version(context.get(), version);
    SSL_CTX_set_max_proto_version(context.get(), version);
    const UniqueFd fd = Connect();
    const std::shared_ptr<SSL> session(SSL_new(context.get()), SSL_free);
    SSL_set_fd(session.get(), fd.get());
    return SSL_connect(session.get()) == 1;
  };
  EXPECT_FALSE(connects(TLS1_1_VERSION));
  EXPECT_TRUE(connects(TLS1_2_VERSION));
  EXPECT_TRUE(connects(TLS1_3_VERSION));
}

}  // namespace
}  // namespace millrace::http
