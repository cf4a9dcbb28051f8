SELECT fence, version, changes FROM names WHERE name = ?1;
