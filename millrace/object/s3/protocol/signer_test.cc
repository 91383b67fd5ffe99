#include "millrace/object/s3/protocol/signer.h"

#include <gtest/gtest.h>

#include "millrace/base/hash/text_encoding.h"

namespace millrace::object::s3 {
namespace {

const std::string kEmptyHash = HexEncode(Sha256({}));

std::string SignatureIn(std::string_view authorization) {
  return std::string(authorization.substr(authorization.find("Signature=") + 10));
}

/// AWS's published suite for Signature Version 4 ("aws-sig-v4-test-suite"), the cases that hold for any service.
struct Vector {
  std::string name, method, path, query;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string signature;
};
class PublishedVectors : public ::testing::TestWithParam<Vector> {};

TEST_P(PublishedVectors, Agree) {
  const Vector& vector = GetParam();
  Signer signer("us-east-1", "service");
  Credentials credentials{.access_key = "AKIDEXAMPLE", .secret_key = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"};
  http::Headers headers;
  for (const auto& [name, value] : vector.headers) headers.Add(name, value);
  signer.Sign({.method = vector.method, .host = "example.amazonaws.com", .path = vector.path, .query = vector.query},
              kEmptyHash, credentials, *ParseIso8601("20150830T123600Z"), headers);
  std::string_view authorization = headers.Get("Authorization");
  EXPECT_TRUE(authorization.starts_with(
      "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, SignedHeaders=host;"))
      << authorization;
  EXPECT_EQ(SignatureIn(authorization), vector.signature);
}

INSTANTIATE_TEST_SUITE_P(
    All, PublishedVectors,
    ::testing::Values(
        Vector{"GetVanilla", "GET", "/", "", {}, "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
        Vector{"PostVanilla", "POST", "/", "", {}, "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"},
        Vector{"GetQueryOrderKeyCase",
               "GET",
               "/",
               EncodeQuery({{"Param2", "value2"}, {"Param1", "value1"}}),
               {},
               "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"},
        Vector{
            "GetUtf8", "GET", "/%E1%88%B4", "", {}, "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"},
        Vector{"GetUnreserved",
               "GET",
               "/-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
               "",
               {},
               "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f"},
        Vector{"GetHeaderValueTrim",
               "GET",
               "/",
               "",
               {{"My-Header1", " value1"}, {"My-Header2", " \"a   b   c\""}},
               "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736"},
        Vector{"GetHeaderKeyDuplicate",
               "GET",
               "/",
               "",
               {{"My-Header1", "value2"}, {"My-Header1", "value2"}, {"My-Header1", "value1"}},
               "c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea"}),
    [](const auto& info) { return info.param.name; });

/// The examples of the S3 API reference.
class S3Examples : public ::testing::Test {
 protected:
  std::string Sign(std::string_view method, std::string_view path, std::string_view query, std::string_view hash,
                   http::Headers headers) {
    headers.Set("X-Amz-Content-Sha256", std::string(hash));
    signer_.Sign({.method = method, .host = kHost, .path = path, .query = query}, hash, credentials_, now_, headers);
    return SignatureIn(headers.Get("Authorization"));
  }
  static constexpr std::string_view kHost = "examplebucket.s3.amazonaws.com";
  Signer signer_{"us-east-1", "s3"};
  Credentials credentials_{.access_key = "AKIAIOSFODNN7EXAMPLE",
                           .secret_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"};
  WallTime now_ = *ParseIso8601("20130524T000000Z");
};

TEST_F(S3Examples, GetWithRange) {
  http::Headers headers;
  headers.Set("Range", "bytes=0-9");
  EXPECT_EQ(Sign("GET", "/test.txt", "", kEmptyHash, headers),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

TEST_F(S3Examples, Put) {
  http::Headers headers;
  headers.Set("Date", "Fri, 24 May 2013 00:00:00 GMT");
  headers.Set("x-amz-storage-class", "REDUCED_REDUNDANCY");
  EXPECT_EQ(
      Sign("PUT", "/test%24file.text", "", "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072", headers),
      "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
}

TEST_F(S3Examples, QueryWithoutValue) {
  EXPECT_EQ(Sign("GET", "/", EncodeQuery({{"lifecycle", ""}}), kEmptyHash, {}),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
}

TEST_F(S3Examples, List) {
  EXPECT_EQ(Sign("GET", "/", EncodeQuery({{"prefix", "J"}, {"max-keys", "2"}}), kEmptyHash, {}),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST_F(S3Examples, Presigned) {
  std::string query = signer_.Presign({.method = "GET", .host = kHost, .path = "/test.txt"}, {}, credentials_, now_,
                                      std::chrono::hours(24));
  EXPECT_EQ(query,
            "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2F"
            "aws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature="
            "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404");
}

TEST_F(S3Examples, TheKeyFollowsDayAndSecret) {
  std::string first = Sign("GET", "/", "", kEmptyHash, {});
  now_ += std::chrono::days(1);
  std::string next_day = Sign("GET", "/", "", kEmptyHash, {});
  EXPECT_NE(first, next_day);
  credentials_.secret_key += "x";
  EXPECT_NE(Sign("GET", "/", "", kEmptyHash, {}), next_day);
  now_ -= std::chrono::days(1);
  credentials_.secret_key.pop_back();
  EXPECT_EQ(Sign("GET", "/", "", kEmptyHash, {}), first);
}

TEST(EncodeQuery, SortsWhatIsEncoded) {
  EXPECT_EQ(EncodeQuery({{"b", "x y"}, {"a", "1&2"}, {"a", ""}, {"ü", "/"}}), "%C3%BC=%2F&a=&a=1%262&b=x%20y");
}

}  // namespace
}  // namespace millrace::object::s3
