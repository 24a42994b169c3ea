//! TLS: a certificate and its key, from PEM.

use std::sync::{Arc, PoisonError, RwLock};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, version};

use crate::error::{Error, ErrorKind, Result};

/// What the gateway shows of itself to clients. Clones are one: what replaces the certificate of one
/// of them replaces that of all.
#[derive(Clone)]
pub struct Tls {
    acceptor: Arc<RwLock<TlsAcceptor>>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Takes a chain of certificates and the key of the first, both in PEM.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for texts that are none, and for a key that is not the certificate's; never
    /// with what they hold.
    pub fn of_pem(certificates: &[u8], key: &[u8]) -> Result<Self> {
        let refuse = |what: &'static str| Error::new(ErrorKind::InvalidInput, what);
        let chain: std::result::Result<Vec<_>, _> =
            CertificateDer::pem_slice_iter(certificates).collect();
        let chain = chain.map_err(|_text| refuse("the certificate is no PEM"))?;
        if chain.is_empty() {
            return Err(refuse("there is no certificate in the PEM"));
        }
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|_text| refuse("there is no private key in the PEM"))?;
        let provider = Arc::new(ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])
            .map_err(|e| refuse("TLS cannot be set up").with_source(e))?;
        let config = config.with_no_client_auth().with_single_cert(chain, key);
        let mut config =
            config.map_err(|e| refuse("the key is not that of the certificate").with_source(e))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Ok(Self { acceptor: Arc::new(RwLock::new(acceptor)) })
    }

    /// Takes the certificate and the key of another one, in place of its own, from the next
    /// connection on: a gateway that has a clone needs no restart when a certificate is renewed.
    pub fn replace(&self, other: &Self) {
        let other = other.acceptor();
        *self.acceptor.write().unwrap_or_else(PoisonError::into_inner) = other;
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_certificate_or_no_key_is_refused_without_its_text() {
        for (certificate, key) in [
            (&b""[..], &b""[..]),
            (b"secret", b"secret"),
            (b"-----BEGIN CERTIFICATE-----\nc2VjcmV0\n", b"secret"),
            (
                b"-----BEGIN CERTIFICATE-----\nc2VjcmV0\n-----END CERTIFICATE-----\n",
                b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n",
            ),
        ] {
            let error = Tls::of_pem(certificate, key).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(!error.to_string().contains("c2Vj"), "{error}");
        }
    }
}
