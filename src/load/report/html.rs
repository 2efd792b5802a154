//! x
/// x
pub fn render(_: &super::Report) -> String {
    String::new()
}
