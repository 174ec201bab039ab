//! What strangers may show at a door.

use crate::{Authority, keys::Certificate, revoked, token};

#[test]
fn a_certificate_says_something_or_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::init(dir.path()).unwrap();
    let until = std::time::SystemTime::now() + std::time::Duration::from_secs(3600);
    let hosts = ["127.0.0.1".to_owned(), "n1.example".to_owned(), "::1".to_owned()];
    let node = authority.node("n1", &hosts, until).unwrap();
    let person = authority.person("alice", model::Access::Viewer, until).unwrap();
    let der = |path: &std::path::Path| {
        use rustls::pki_types::{CertificateDer, pem::PemObject};
        CertificateDer::from_pem_file(path).unwrap().to_vec()
    };
    let known =
        [("ca", der(&authority.certificate())), ("node", der(&node.cert)), ("person", der(&person.cert))];
    hostile::keep!("certificates", &known);
    hostile::throw!("certificates", |bytes: &[u8]| {
        if let Some(certificate) = Certificate::parse(bytes) {
            let _any = certificate.lives();
        }
    });
}

#[test]
fn a_header_holds_a_token_of_ours_or_none() {
    hostile::throw!("authorization", |bytes: &[u8]| {
        let Some(shown) = token::of_header(bytes) else { return };
        assert!(shown.len() <= crate::limits::TOKEN_BYTES_MAX);
        let _any = token::hash(shown);
    });
}

#[test]
fn a_list_of_revoked_certificates_is_refused_or_read_as_what_is_written_again() {
    hostile::throw!("revoked", |bytes: &[u8]| {
        let Ok(all) = revoked::parse(&String::from_utf8_lossy(bytes)) else { return };
        let text: String = all.iter().map(|print| revoked::line(print, "n1")).collect();
        assert_eq!(revoked::parse(&text), Ok(all));
    });
}
