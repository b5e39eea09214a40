// A certificate of one's own for 127.0.0.1 and its key, made for a test.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <string>

namespace sandbay::mgmt {

inline std::FILE* open_for_writing(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "w");
  REQUIRE(file != nullptr);
  return file;
}

inline void make_certificate(const std::string& certificate, const std::string& key) {
  EVP_PKEY* const pair = ::EVP_EC_gen("P-256");
  REQUIRE(pair != nullptr);
  X509* const made = ::X509_new();
  ::X509_set_version(made, 2);
  ::ASN1_INTEGER_set(::X509_get_serialNumber(made), 1);
  ::X509_gmtime_adj(::X509_getm_notBefore(made), -60);
  ::X509_gmtime_adj(::X509_getm_notAfter(made), 3600);
  ::X509_set_pubkey(made, pair);
  X509_NAME* const name = ::X509_get_subject_name(made);
  ::X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("sandbay test"), -1, -1, 0);
  ::X509_set_issuer_name(made, name);
  X509_EXTENSION* const names =
      ::X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1,DNS:localhost");
  ::X509_add_ext(made, names, -1);
  ::X509_EXTENSION_free(names);
  REQUIRE(::X509_sign(made, pair, ::EVP_sha256()) > 0);
  std::FILE* file = open_for_writing(certificate);
  ::PEM_write_X509(file, made);
  std::fclose(file);
  file = open_for_writing(key);
  ::PEM_write_PrivateKey(file, pair, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(file);
  ::chmod(key.c_str(), S_IRUSR | S_IWUSR);
  ::X509_free(made);
  ::EVP_PKEY_free(pair);
}

}  // namespace sandbay::mgmt
